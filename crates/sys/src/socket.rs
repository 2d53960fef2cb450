//! Unix sockets that keep message boundaries and carry descriptors.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// Socket that waits for connections at a path.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

/// Largest number of descriptors in one message.
const FDS_MAX: usize = 4;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Checks the result of a call that waits. Such a call with a time limit fails with EINTR if its
/// thread is stopped and continued. This function then repeats the call, whose time limit starts
/// anew.
fn check_waiting(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(done) = usize::try_from(call()) {
            return Ok(done);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn unless_it_waits<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: callers pass only a descriptor that a system call has just returned.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: all zeroes is a valid socket address structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other("the path of the socket is too long"));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

impl Listener {
    /// Listens at `path`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: integers only.
        let fd = own(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
        let (address, len) = address(path)?;
        // Linux gives this mode to the socket's file, too: other users may not even connect.
        // SAFETY: integers only.
        check(unsafe { libc::fchmod(fd.as_raw_fd(), 0o600) })?;
        // SAFETY: the address outlives the call and `len` is its size.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
        // SAFETY: integers only.
        check(unsafe { libc::listen(fd.as_raw_fd(), 1024) })?;
        Ok(Self { fd })
    }

    /// Accepts a waiting connection, if there is one.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        let flags = libc::SOCK_CLOEXEC;
        // SAFETY: null addresses are allowed.
        let fd = unsafe {
            libc::accept4(self.fd.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
        };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        Ok(Some(Socket { fd: own(fd) }))
    }
}

impl Socket {
    /// Takes over a descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Makes a connected pair.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for the two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        Ok((Self { fd: own(fds[0]) }, Self { fd: own(fds[1]) }))
    }

    /// Connects to the listener at `path`. Returns None if the listener's queue of connections is
    /// full.
    pub fn connect_now(path: &Path) -> io::Result<Option<Self>> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: integers only.
        let fd = own(check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?);
        let (address, len) = address(path)?;
        // SAFETY: the address outlives the call and `len` is its size.
        let connect = || unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) };
        if unless_it_waits(check_waiting(|| connect() as libc::ssize_t))?.is_none() {
            return Ok(None);
        }
        rustix::io::ioctl_fionbio(&fd, false)?;
        Ok(Some(Self { fd }))
    }

    /// Returns the process id of the peer.
    pub fn peer(&self) -> io::Result<u32> {
        Ok(self.peer_credentials()?.pid as u32)
    }

    /// Returns the effective user of the peer at the time of the connection.
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(self.peer_credentials()?.uid)
    }

    fn peer_credentials(&self) -> io::Result<libc::ucred> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the structure outlives the call and `len` is its size.
        check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut len,
            )
        })?;
        Ok(credentials)
    }

    /// Takes over a descriptor if it is a connection of this kind. On any other descriptor a
    /// receive may block, whatever the flags say.
    pub fn of(fd: OwnedFd) -> Result<Self, OwnedFd> {
        let fd_number = fd.as_raw_fd();
        let is = |option, wanted| {
            let mut value: libc::c_int = 0;
            let mut len = size_of::<libc::c_int>() as libc::socklen_t;
            let at = (&raw mut value).cast();
            // SAFETY: the integer outlives the call and `len` is its size.
            let result =
                unsafe { libc::getsockopt(fd_number, libc::SOL_SOCKET, option, at, &raw mut len) };
            result == 0 && value == wanted
        };
        if is(libc::SO_DOMAIN, libc::AF_UNIX) && is(libc::SO_TYPE, libc::SOCK_SEQPACKET) {
            Ok(Self { fd })
        } else {
            Err(fd)
        }
    }

    /// Returns whether a message or the end of the connection can be received before `time` is over
    /// or a signal comes.
    pub fn is_ready_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).ok();
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], time.as_ref())
            .is_ok_and(|ready| ready > 0)
    }

    /// Sends a message with descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(bytes, fds, 0)
    }

    /// Sends a message if there is room for it. Returns None if the socket's buffer is full.
    pub fn send_now(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Option<()>> {
        unless_it_waits(self.send_with(bytes, fds, libc::MSG_DONTWAIT))
    }

    fn send_with(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: libc::c_int,
    ) -> io::Result<()> {
        assert!(fds.len() <= FDS_MAX);
        let mut data =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 8];
        // SAFETY: all zeroes is a valid empty message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut data;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let payload = (fds.len() * 4) as u32;
            header.msg_control = control.as_mut_ptr().cast();
            // SAFETY: plain arithmetic; the control buffer (64 bytes) has room for FDS_MAX
            // descriptors, and the first control header lies inside it.
            unsafe {
                header.msg_controllen = libc::CMSG_SPACE(payload) as usize;
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(payload) as usize;
                for (i, fd) in fds.iter().enumerate() {
                    libc::CMSG_DATA(first)
                        .cast::<libc::c_int>()
                        .add(i)
                        .write_unaligned(fd.as_raw_fd());
                }
            }
        }
        let flags = flags | libc::MSG_NOSIGNAL;
        // SAFETY: the header names memory that outlives the call.
        let send = || unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const header, flags) };
        check_waiting(send).map(drop)
    }

    /// Receives one message. 0 bytes mean that the other end is gone.
    pub fn receive(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.receive_with(bytes, fds, 0)
    }

    /// Receives one message if there is one. Returns None if there is none, or if another reader
    /// has just received it.
    pub fn receive_now(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<Option<usize>> {
        unless_it_waits(self.receive_with(bytes, fds, libc::MSG_DONTWAIT))
    }

    fn receive_with(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 8];
        // SAFETY: all zeroes is a valid empty message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut data;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let flags = flags | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header names memory that outlives the call.
        let receive = || unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, flags) };
        let got = check_waiting(receive)?;
        // SAFETY: the kernel has filled the control buffer with well-formed headers. Descriptors in
        // an SCM_RIGHTS message are new and belong to this process.
        unsafe {
            let mut next = libc::CMSG_FIRSTHDR(&raw const header);
            while !next.is_null() {
                if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                    let count = ((*next).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
                    for i in 0..count {
                        let fd =
                            libc::CMSG_DATA(next).cast::<libc::c_int>().add(i).read_unaligned();
                        fds.push(own(fd));
                    }
                }
                next = libc::CMSG_NXTHDR(&raw const header, next);
            }
        }
        Ok(got)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_is_taken_for_one() {
        let (one, other) = Socket::pair().unwrap();
        assert!(Socket::of(one.fd).is_ok());
        assert!(Socket::of(std::fs::File::open("/dev/null").unwrap().into()).is_err());
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Socket::of(stream.into()).is_err());
        drop(other);
    }

    #[test]
    fn a_nonblocking_call_reports_that_nothing_is_there_or_fits() {
        let (one, other) = Socket::pair().unwrap();
        let mut bytes = [0; 8];
        assert_eq!(one.receive_now(&mut bytes, &mut Vec::new()).unwrap(), None);
        other.send(b"word", &[]).unwrap();
        assert_eq!(one.receive_now(&mut bytes, &mut Vec::new()).unwrap(), Some(4));
        while one.send_now(b"word", &[]).unwrap().is_some() {}
        assert_eq!(other.receive_now(&mut bytes, &mut Vec::new()).unwrap(), Some(4));
    }

    #[test]
    fn a_socket_is_ready_when_its_peer_sends_or_ends() {
        let (one, other) = Socket::pair().unwrap();
        assert!(!one.is_ready_within(Duration::from_millis(1)));
        other.send(b"word", &[]).unwrap();
        assert!(one.is_ready_within(Duration::ZERO));
        assert_eq!(one.receive(&mut [0; 8], &mut Vec::new()).unwrap(), 4);
        drop(other);
        assert!(one.is_ready_within(Duration::ZERO));
    }

    #[test]
    fn a_full_listener_is_distinguished_from_a_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(Socket::connect_now(&path).is_err());
        let listener = Listener::bind(&path).unwrap();
        // A user may have fewer descriptors than a listener has room.
        rustix::net::listen(&listener, 8).unwrap();
        let lines: Vec<Socket> =
            std::iter::from_fn(|| Socket::connect_now(&path).unwrap()).take(100).collect();
        assert!(Socket::connect_now(&path).unwrap().is_none(), "{} are in", lines.len());
        listener.accept().unwrap();
        assert!(Socket::connect_now(&path).unwrap().is_some());
    }

    extern "C" fn nothing(_: libc::c_int) {}

    /// Without the repetition, `ebb stat` failed with "Interrupted system call" while its run froze
    /// its threads for a moment.
    #[test]
    fn an_interrupted_wait_goes_on() {
        let (one, other) = Socket::pair().unwrap();
        let (told, tell) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            // SAFETY: asks for this thread's own handle.
            let name = unsafe { libc::pthread_self() };
            told.send((name, crate::sched::this_thread())).unwrap();
            one.receive(&mut [0; 8], &mut Vec::new())
        });
        let (thread, number) = tell.recv().unwrap();
        // SAFETY: the handler does nothing, and the thread lives until it is joined below.
        unsafe {
            libc::signal(libc::SIGURG, nothing as *const () as libc::sighandler_t);
            for _ in 0..20 {
                ebb_testing::eventually_is("the state of who waits", Some('S'), || {
                    crate::proc::state(number)
                });
                libc::pthread_kill(thread, libc::SIGURG);
            }
        }
        other.send(b"word", &[]).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 4);
    }
}
