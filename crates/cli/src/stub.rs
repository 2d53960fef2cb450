//! A shared object for 32-bit programs, which has nothing in it.
//!
//! A 32-bit program inherits `LD_PRELOAD`, and its loader prints an error for a library of another
//! class. So its loader finds this one in place of the agent ([`crate::folder`], FOLDER-7).

/// Sizes of the parts, from the ELF specification (32-bit).
const HEADER: u32 = 52;
const SEGMENT: u32 = 32;
const ENTRY: u32 = 8;
const SYMBOL: u32 = 16;

/// Offsets of the parts, which are also their addresses.
const SEGMENTS_AT: u32 = HEADER;
const DYNAMIC_AT: u32 = SEGMENTS_AT + 3 * SEGMENT;
const DYNAMIC_LEN: u32 = 6 * ENTRY;
const HASH_AT: u32 = DYNAMIC_AT + DYNAMIC_LEN;
const SYMBOLS_AT: u32 = HASH_AT + 4 * 4;
const STRINGS_AT: u32 = SYMBOLS_AT + SYMBOL;
const LEN: u32 = STRINGS_AT + 4;

/// Returns the bytes of the shared object.
pub fn library() -> Vec<u8> {
    const READ_WRITE: u32 = 6;
    const PAGE: u32 = 4096;
    let mut bytes = Vec::with_capacity(LEN as usize);
    // 32 bits, little-endian, version 1, System V.
    bytes.extend(*b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    // A shared object for i386.
    bytes.extend([3u16, 3].into_iter().flat_map(u16::to_le_bytes));
    let mut words = |of: &[u32]| bytes.extend(of.iter().copied().flat_map(u32::to_le_bytes));
    // Version, entry, segments, sections, flags; then pairs of 16 bits: size of this header and of
    // a segment's, number of segments, and three of sections.
    words(&[1, 0, SEGMENTS_AT, 0, 0, SEGMENT << 16 | HEADER, 3, 0]);
    // Kind, offset, address, physical address, length in the file and in memory, access, alignment.
    // The loader writes to the dynamic section.
    words(&[1, 0, 0, 0, LEN, LEN, READ_WRITE, PAGE]);
    words(&[2, DYNAMIC_AT, DYNAMIC_AT, 0, DYNAMIC_LEN, DYNAMIC_LEN, READ_WRITE, 4]);
    // PT_GNU_STACK: without it the loader makes stacks executable.
    words(&[0x6474_e551, 0, 0, 0, 0, 0, READ_WRITE, 16]);
    // Hash table, strings, symbols, length of the strings and of a symbol, end.
    words(&[4, HASH_AT, 5, STRINGS_AT, 6, SYMBOLS_AT, 10, 1, 11, SYMBOL, 0, 0]);
    // A hash table of one bucket and one symbol, and that symbol, which stands for none.
    words(&[1, 1, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_library_lie_where_its_header_says() {
        let bytes = library();
        assert_eq!(bytes.len(), LEN as usize);
        let word = |at: u32| {
            let at = at as usize;
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
        };
        assert_eq!(word(28), SEGMENTS_AT);
        assert_eq!((word(SEGMENTS_AT), word(SEGMENTS_AT + SEGMENT)), (1, 2));
        assert_eq!((word(DYNAMIC_AT), word(HASH_AT)), (4, 1));
        assert_eq!(bytes[STRINGS_AT as usize], 0, "the empty string");
    }
}
