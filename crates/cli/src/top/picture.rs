//! Formats the screen of `ebb top` as lines. Pure, so that it is tested without a terminal.

use super::screen::Shows;
use crate::ps;
use ebb_control::{AreaView, FaultKind, MemoryPressure, Pages, ProcessView, Tier, View};
use ebb_sys::words::plain;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::Duration;

const PAGE: u64 = 4096;

/// Formats bytes in about five characters: 512K, 12.3M, 1.5G.
pub fn size(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    match kib {
        0.0 => "0".to_owned(),
        ..1000.0 => format!("{kib:.0}K"),
        ..1_024_000.0 => format!("{:.1}M", kib / 1024.0),
        ..1_048_576_000.0 => format!("{:.1}G", kib / 1_048_576.0),
        _ => format!("{:.1}T", kib / 1_073_741_824.0),
    }
}

/// Formats a count or a rate in five characters: 999, 12.3k, 1.2m.
pub fn count(number: f64) -> String {
    match number {
        ..10.0 if number.fract() > 0.05 => format!("{number:.1}"),
        ..1000.0 => format!("{number:.0}"),
        ..1e5 => format!("{:.1}k", number / 1e3),
        ..1e6 => format!("{:.0}k", number / 1e3),
        ..1e8 => format!("{:.1}m", number / 1e6),
        ..1e9 => format!("{:.0}m", number / 1e6),
        _ => format!("{:.1}g", number / 1e9),
    }
}

/// Formats a time in a few characters: 0.4s, 12s, 3m05s, 2h07m, 3d04h.
pub fn age(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{:.1}s", ms as f64 / 1000.0),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

/// Returns the length of each part of a bar whose `width` characters stand for `whole`.
pub fn lengths(parts: &[u64], whole: u64, width: usize) -> Vec<usize> {
    let (mut sum, mut before) = (0u128, 0);
    let whole = u128::from(whole.max(1));
    let part = |part: &u64| {
        sum += u128::from(*part);
        let end = ((sum * width as u128 + whole / 2) / whole).min(width as u128) as usize;
        let length = end - before;
        before = end;
        length
    };
    parts.iter().map(part).collect()
}

/// Abilities of the terminal and width of the screen, in characters.
#[derive(Clone, Copy, Debug)]
pub struct Pen {
    pub shows: Shows,
    pub width: usize,
}

/// Characters of bars, the first parts the fullest.
const SHADES: [char; 4] = ['█', '▓', '▒', '░'];
const ASCII_SHADES: [char; 4] = ['#', '=', '-', '.'];
const COLOURS: [Color; 4] = [Color::Green, Color::Cyan, Color::Yellow, Color::Red];

/// Locations of pages: letter in the answer, character without and with Unicode, colour, name.
const PLACES: [(char, char, char, Color, &str); 6] = [
    ('V', '#', '█', Color::Green, "visible"),
    ('B', '=', '▓', Color::Cyan, "standby"),
    ('R', 'r', 'r', Color::Yellow, "ram"),
    ('F', 'f', 'f', Color::Red, "file"),
    ('S', '1', '1', Color::Blue, "one word"),
    ('.', '.', '·', Color::DarkGray, "none"),
];

impl Pen {
    fn coloured(&self, colour: Color) -> Style {
        if self.shows.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn bold(&self, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), Style::new().add_modifier(Modifier::BOLD))
    }

    /// Returns a headline, reversed, so that it stands out without colours.
    fn head(&self, text: &str) -> Line<'static> {
        let width = self.width;
        let text: String = text.chars().take(width).collect();
        let style = Style::new().add_modifier(Modifier::REVERSED);
        Line::styled(format!("{text:<width$}"), style)
    }

    /// Returns a bar of parts, each with a character and a colour of its own.
    fn bar(&self, parts: &[u64], whole: u64, width: usize) -> Vec<Span<'static>> {
        let shades = if self.shows.unicode { SHADES } else { ASCII_SHADES };
        let lengths = lengths(parts, whole, width);
        let rest = width - lengths.iter().sum::<usize>();
        let mut spans = vec![Span::raw("[")];
        for (at, length) in lengths.into_iter().enumerate() {
            let at = at % shades.len();
            let text = shades[at].to_string().repeat(length);
            spans.push(Span::styled(text, self.coloured(COLOURS[at])));
        }
        spans.push(Span::raw(" ".repeat(rest)));
        spans.push(Span::raw("]"));
        spans
    }

    /// Returns the map of an area, one character for each part of it.
    fn cells(&self, cells: &str) -> Vec<Span<'static>> {
        let shown = |cell: char| {
            let &(_, ascii, unicode, colour, _) =
                PLACES.iter().find(|place| place.0 == cell).unwrap_or(&PLACES[5]);
            let letter = if self.shows.unicode { unicode } else { ascii };
            Span::styled(letter.to_string(), self.coloured(colour))
        };
        cells.chars().map(shown).collect()
    }
}

/// Two views of a run, from which rates are computed.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub now: View,
    pub before: Option<View>,
}

impl Seen {
    /// Adds the next view.
    pub fn next(self, view: View) -> Self {
        // In one run the clock only goes forward.
        let before = Some(self.now).filter(|before| before.at_us > 0 && before.at_us < view.at_us);
        Self { now: view, before }
    }

    fn seconds(&self) -> Option<f64> {
        let before = self.before.as_ref()?;
        Some((self.now.at_us - before.at_us) as f64 / 1e6)
    }

    /// Returns the growth of a figure in a second; 0 for its first view.
    fn rate(&self, figure: impl Fn(&View) -> u64) -> f64 {
        let (Some(before), Some(seconds)) = (&self.before, self.seconds()) else { return 0.0 };
        figure(&self.now).saturating_sub(figure(before)) as f64 / seconds
    }

    /// Returns the growth of a process's figure in a second; 0 for its first view.
    fn rate_of(&self, pid: u32, figure: impl Fn(&ProcessView) -> u64) -> f64 {
        let of =
            |view: &View| view.processes.iter().find(|process| process.pid == pid).map(&figure);
        let known = self.before.as_ref().is_some_and(|before| of(before).is_some());
        if known { self.rate(|view| of(view).unwrap_or(0)) } else { 0.0 }
    }

    /// Returns the faults of a kind in a second.
    fn faults(&self, kind: FaultKind) -> f64 {
        self.rate(|view| view.faults[kind as usize])
    }
}

/// A generation of the multi-gen LRU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation {
    pub number: u64,
    pub age_ms: u64,
    pub pages: u64,
}

/// Parses `lru_gen_full`. Returns the generations, the oldest first. Returns also for each access
/// tier how many pages were refaulted, evicted and protected.
pub fn generations(text: &str) -> (Vec<Generation>, Vec<[u64; 3]>) {
    let (mut found, mut tiers) = (Vec::new(), Vec::<[u64; 3]>::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [number, age, pages, _file] if !pages.ends_with('x') => {
                let [number, age, pages] = [number, age, pages].map(|word| word.parse().ok());
                let (Some(number), Some(age_ms), Some(pages)) = (number, age, pages) else {
                    continue;
                };
                found.push(Generation { number, age_ms, pages });
            }
            // The tier, three figures of anonymous pages, three of file pages.
            [tier, r, e, p, _, _, _] => {
                let Ok(tier @ 0..8) = tier.parse::<usize>() else { continue };
                tiers.resize(tiers.len().max(tier + 1), [0; 3]);
                for (sum, (word, letter)) in
                    tiers[tier].iter_mut().zip([(r, 'r'), (e, 'e'), (p, 'p')])
                {
                    let counted = word.strip_suffix(letter).and_then(|number| number.parse().ok());
                    *sum += counted.unwrap_or(0u64);
                }
            }
            _ => {}
        }
    }
    // A generation that anonymous pages no longer have is empty.
    (found, tiers)
}

/// Returns the list of runs, with the chosen one marked.
pub fn runs(pen: Pen, runs: &[ps::Run], chosen: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![pen.head(&format!(
        "{:>8} {:>8} {:>8} {:>10} {:>8} {:>6}  {}",
        "PID", "MAX", "USED", "COMPRESSED", "FILE", "SOME", "COMMAND"
    ))];
    if runs.is_empty() {
        lines.push(Line::raw(""));
        lines.push(Line::raw("You have no run. A run appears here when it starts, for example:"));
        lines.push(Line::raw("  ebb run --memory-max 256M -- python3 job.py"));
        return lines;
    }
    let room = height.saturating_sub(1).max(1);
    let first = (chosen + 1).saturating_sub(room);
    for (at, run) in runs.iter().enumerate().skip(first).take(room) {
        let text = format!(
            "{:>8} {:>8} {:>8} {:>10} {:>8} {:>5.1}%  {}",
            run.pid,
            size(run.memory_max_bytes),
            size(run.used_bytes),
            size(run.compressed_pages * PAGE),
            size(run.file_pages * PAGE),
            run.pressure_some_percent,
            plain(&run.command)
        );
        lines.push(choose(pen, text, at == chosen));
    }
    lines
}

/// Returns a line of a list. The chosen line has a mark, so that its colour is not needed.
fn choose(pen: Pen, text: String, chosen: bool) -> Line<'static> {
    let width = pen.width;
    let mark = if chosen { '>' } else { ' ' };
    let text: String = std::iter::once(mark).chain(text.chars().skip(1)).take(width).collect();
    let style = Style::new();
    let style = if chosen { style.add_modifier(Modifier::BOLD) } else { style };
    Line::styled(text, style)
}

/// Returns the page of one run in `height` lines: its figures, its processes, and the map of the
/// chosen process.
pub fn run(pen: Pen, seen: &Seen, chosen: u32, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![memory(pen, &seen.now), waiting(seen), faults(seen)];
    lines.extend(tiers(seen));
    lines.extend(refaults(seen));
    lines.extend(ages(pen, &seen.now));
    if !seen.now.unmanaged.is_empty() {
        lines.push(Line::raw(format!("beside   {}", plain(&seen.now.unmanaged.join("; ")))));
    }
    let processes = &seen.now.processes;
    // The map gets the lines that the processes leave, at least half.
    let left = height.saturating_sub(lines.len() + 2);
    let room = processes.len().clamp(1, (left / 2).max(1));
    lines.extend(of_processes(pen, seen, chosen, room));
    let left = height.saturating_sub(lines.len());
    lines.extend(map(pen, &seen.now, chosen, left));
    lines.truncate(height);
    lines
}

fn memory(pen: Pen, view: &View) -> Line<'static> {
    let high = if view.high_bytes < view.limit_bytes {
        format!("  high {}", size(view.high_bytes))
    } else {
        String::new()
    };
    let managing = if view.managing { "" } else { "  not managed yet" };
    let compressed = view.tiers.iter().find(|tier| tier.name == "ram");
    let compressed = compressed.map_or(0, |tier| tier.occupied_bytes).min(view.used_bytes);
    let text = format!("memory   {:>7} of {:<7} ", size(view.used_bytes), size(view.limit_bytes));
    let mut spans = vec![pen.bold(text)];
    spans.extend(pen.bar(&[view.used_bytes - compressed, 0, compressed], view.limit_bytes, 26));
    spans.push(Span::raw(format!(" {} of it compressed{high}{managing}", size(compressed))));
    Line::from(spans)
}

fn waiting(seen: &Seen) -> Line<'static> {
    let MemoryPressure { some, full } = &seen.now.pressure;
    let lost = seen.rate(|view| view.waited_us) / 1e4;
    let shares =
        |average: [u64; 3]| average.map(|share| format!("{:.1}", share as f64 / 100.0)).join("/");
    Line::raw(format!(
        "waiting  threads {lost:.1}% of the time   some {}%   full {}%",
        shares(some.average),
        shares(full.average)
    ))
}

fn faults(seen: &Seen) -> Line<'static> {
    let named = [
        (FaultKind::Zero, "zero"),
        (FaultKind::Reactivate, "standby"),
        (FaultKind::Compressed, "ram"),
        (FaultKind::File, "file"),
        (FaultKind::Remote, "remote"),
        (FaultKind::Same, "one word"),
        (FaultKind::Ahead, "ahead"),
        (FaultKind::Protected, "protected"),
    ];
    let texts: Vec<String> = (named.iter().enumerate())
        .map(|(at, &(kind, name))| (at, name, seen.faults(kind)))
        // The first four kinds are always shown. The other kinds are rare.
        .filter(|&(at, _, rate)| at < 4 || rate > 0.0)
        .map(|(_, name, rate)| format!("{name} {}", count(rate)))
        .collect();
    Line::raw(format!("faults/s {}", texts.join("  ")))
}

fn tiers(seen: &Seen) -> Vec<Line<'static>> {
    let line = |(at, tier): (usize, &Tier)| {
        let ratio = (tier.pages * PAGE) as f64 / tier.occupied_bytes.max(1) as f64;
        let rate = |figure: fn(&Tier) -> u64| {
            count(seen.rate(|view| view.tiers.get(at).map_or(0, figure)))
        };
        Line::raw(format!(
            "{:<8} {:>7} in {:<7} ({ratio:.2}:1)  {}/s read  {}/s written",
            tier.name,
            size(tier.pages * PAGE),
            size(tier.occupied_bytes),
            rate(|tier| tier.reads),
            rate(|tier| tier.writes),
        ))
    };
    seen.now.tiers.iter().enumerate().map(line).collect()
}

fn refaults(seen: &Seen) -> Vec<Line<'static>> {
    let rate = |figure: fn(&View) -> u64| count(seen.rate(figure));
    let (_, tiers) = generations(&seen.now.lru_gen);
    let texts: Vec<String> = (tiers.iter().enumerate())
        .filter(|(_, [r, e, p])| r + e + p > 0)
        .map(|(tier, [r, e, p])| {
            let [back, of, kept] = [*r, *e, *p].map(|pages| count(pages as f64));
            format!("{tier}: {back} of {of}, {kept} kept")
        })
        .collect();
    let by_tier = if texts.is_empty() { "none so far".to_owned() } else { texts.join("  ") };
    vec![
        Line::raw(format!(
            "refaults {}/s   active again {}/s   active before {}/s",
            rate(|view| view.refaults.refault),
            rate(|view| view.refaults.activate),
            rate(|view| view.refaults.restore),
        )),
        Line::raw(format!("by tier  {by_tier}")),
    ]
}

/// Returns the generations as a bar, the youngest first, and a line about each.
fn ages(pen: Pen, view: &View) -> Vec<Line<'static>> {
    if !view.multi_gen {
        return vec![
            Line::raw("ages     the classic lists are in use: no generations"),
            Line::raw(""),
        ];
    }
    let (mut found, _) = generations(&view.lru_gen);
    found.reverse();
    let pages: Vec<u64> = found.iter().map(|generation| generation.pages).collect();
    let mut spans = vec![Span::raw("ages     ")];
    let width = pen.width.saturating_sub(11).min(100);
    spans.extend(pen.bar(&pages, pages.iter().sum(), width));
    let shades = if pen.shows.unicode { SHADES } else { ASCII_SHADES };
    let mut names = vec![Span::raw("         ")];
    for (at, generation) in found.iter().enumerate() {
        let at = at % shades.len();
        names.push(Span::styled(shades[at].to_string(), pen.coloured(COLOURS[at])));
        names.push(Span::raw(format!(
            " {} {} {}  ",
            generation.number,
            age(generation.age_ms),
            size(generation.pages * PAGE)
        )));
    }
    vec![Line::from(spans), Line::from(names)]
}

fn of_processes(pen: Pen, seen: &Seen, chosen: u32, room: usize) -> Vec<Line<'static>> {
    let mut lines = vec![pen.head(&format!(
        "{:>8} {:<11}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>6}{:>7}{:>5}",
        "PID", "NAME", "RES", "STBY", "RAM", "FILE", "ZERO/s", "STBY/s", "RAM/s", "FILE/s", "WAIT"
    ))];
    let processes = &seen.now.processes;
    let at = processes.iter().position(|process| process.pid == chosen).unwrap_or(0);
    let first = (at + 1).saturating_sub(room);
    for process in processes.iter().skip(first).take(room) {
        let pages = |pages: u64| size(pages * PAGE);
        let rate = |kind: FaultKind| {
            count(seen.rate_of(process.pid, |process| process.faults[kind as usize]))
        };
        let waits = seen.rate_of(process.pid, |process| process.waited_us) / 1e4;
        let text = format!(
            "{:>8} {:<11.11}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>6}{:>7}{waits:>4.0}%",
            process.pid,
            plain(&process.name),
            size(process.resident_bytes),
            pages(process.pages.standby),
            pages(process.pages.ram),
            pages(process.pages.file),
            rate(FaultKind::Zero),
            rate(FaultKind::Reactivate),
            rate(FaultKind::Compressed),
            rate(FaultKind::File),
        );
        lines.push(choose(pen, text, process.pid == chosen));
    }
    lines
}

/// Returns the areas of a process, by name, with the locations of their pages.
fn map(pen: Pen, view: &View, chosen: u32, height: usize) -> Vec<Line<'static>> {
    if height < 2 {
        return Vec::new();
    }
    let mut key = vec![Span::raw(format!("map of {chosen}:"))];
    for &(cell, .., name) in &PLACES {
        key.push(Span::raw(" "));
        key.extend(pen.cells(&cell.to_string()));
        key.push(Span::raw(format!(" {name}")));
    }
    let mut lines = vec![Line::from(key)];
    if view.areas_of != chosen {
        return lines;
    }
    let room = height - 1;
    let shown = if view.areas.len() > room { room - 1 } else { room };
    lines.extend(view.areas.iter().take(shown).map(|area| line_of(pen, area)));
    if view.areas.len() > shown {
        let mut pages = Pages::default();
        view.areas[shown..].iter().for_each(|area| pages.join(&area.pages));
        lines.push(Line::raw(format!(
            "{} more: {} resident, {} stored; Enter shows the whole map",
            view.areas.len() - shown,
            size(pages.resident() * PAGE),
            size(pages.stored() * PAGE)
        )));
    }
    lines
}

fn line_of(pen: Pen, area: &AreaView) -> Line<'static> {
    let which = match area.start {
        Some(start) => format!("{start:x}"),
        None if area.areas == 1 => "1 area".to_owned(),
        None => format!("{} areas", area.areas),
    };
    let name = plain(&area.name);
    let mut spans = vec![Span::raw(format!(
        "{which:>12} {name:<11.11}{:>7} {:>7} {:>7} ",
        size(area.bytes),
        size(area.pages.resident() * PAGE),
        size(area.pages.stored() * PAGE)
    ))];
    if area.cells.is_empty() {
        let Pages { visible, standby, ram, file, .. } = area.pages;
        if area.pages.all() > 0 && area.start.is_none() {
            spans.push(Span::raw(format!(
                "visible {} standby {} ram {} file {}",
                size(visible * PAGE),
                size(standby * PAGE),
                size(ram * PAGE),
                size(file * PAGE)
            )));
        }
    } else {
        spans.extend(pen.cells(&area.cells));
    }
    Line::from(spans)
}

/// Returns all areas of a process.
pub fn whole_map(
    pen: Pen,
    view: &View,
    chosen: u32,
    skip: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let mut lines = vec![pen.head(&format!(
        "{:>12} {:<11}{:>7} {:>7} {:>7} {}",
        "AREA", "NAME", "SIZE", "MEMORY", "STORED", "FROM ITS BEGINNING TO ITS END"
    ))];
    if view.areas_of == chosen {
        lines.extend(view.areas.iter().skip(skip).map(|area| line_of(pen, area)));
        if view.areas.is_empty() {
            lines.push(Line::raw("Ebb can show no area of this process."));
        }
    }
    let mut key = vec![Span::raw("most pages of a part:")];
    for &(cell, .., name) in &PLACES {
        key.push(Span::raw(" "));
        key.extend(pen.cells(&cell.to_string()));
        key.push(Span::raw(format!(" {name}")));
    }
    lines.truncate(height.saturating_sub(1));
    lines.push(Line::from(key));
    lines
}

/// Returns the help about the keys.
pub fn help(pen: Pen, every: Duration) -> Vec<Line<'static>> {
    let rows = [
        ("up, down, k, j", "another run, or another process of the run"),
        ("Enter", "show the run; then the whole map of the process"),
        ("Esc, Backspace", "back"),
        ("+  -", "raise or lower the limit by an eighth (ebb set PID memory.max=)"),
        ("r", "reclaim a sixteenth of the run's memory now, once"),
        ("?", "this help"),
        ("q, Ctrl-C", "quit"),
    ];
    let mut lines = vec![pen.head("KEYS")];
    lines.extend(rows.map(|(keys, what)| Line::raw(format!("{keys:<16}{what}"))));
    let words = [
        "",
        "threads  time that all threads together wait for pages; 100% is one thread's",
        "some     share of the last 10, 60 and 300 s in which at least one thread waits;",
        "         full: in which no other thread runs",
        "faults   by the page found: zero (first access), standby, in a tier (ram, file,",
        "         remote), one word (the page repeats it), ahead (on its way), protected",
        "         (a write after a fork)",
        "by tier  for each access tier: refaulted pages, of evicted pages,",
        "         and pages that reclaim kept because their tier refaults more",
        "ages     generations, the youngest first: number, age, size",
        "beside   memory that counts in the limit and that Ebb does not manage",
    ];
    lines.extend(words.map(Line::raw));
    lines.push(Line::raw(format!("new figures every {:.1} s", every.as_secs_f64())));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_control::Pressure;

    const PLAIN: Pen = Pen { shows: Shows { colour: false, unicode: false }, width: 80 };

    fn text(lines: &[Line<'_>]) -> String {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0, 4096, 999 << 10, 12 << 20, 1536 << 20].map(size),
            ["0", "4K", "999K", "12.0M", "1.5G"]
        );
        assert_eq!(size(3 << 40), "3.0T");
        assert_eq!([0.0, 0.5, 12.0, 1234.0, 2.5e6].map(count), ["0", "0.5", "12", "1.2k", "2.5m"]);
        assert_eq!([400, 12_000, 185_000, 7_620_000].map(age), ["0.4s", "12s", "3m05s", "2h07m"]);
    }

    #[test]
    fn a_bar_is_full_when_its_parts_are_the_whole() {
        assert_eq!(lengths(&[1, 1, 1], 3, 10), [3, 4, 3]);
        assert_eq!(lengths(&[1, 0, 1], 4, 10), [3, 0, 2]);
        assert_eq!(lengths(&[u64::MAX, u64::MAX], u64::MAX, 7), [7, 0]);
        assert_eq!(lengths(&[0], 0, 7), [0]);
    }

    /// Text of `lru_gen_full` with two generations.
    const LRU_GEN: &str = "memcg     1 /\n node     0\n          4       2500        100           0 \n\
        \x20                    0         30r         70e          5p          0r          0e          0p\n\
        \x20                    1          3r          7e          0p          0r          0e          0p\n\
        \x20                             0t          0y          0f          0a\n\
        \x20         5         40        300           0 \n\
        \x20                    0         11R         12T          0x          0R          0T          0x\n";

    #[test]
    fn generations_and_tiers_are_read_from_the_kernels_text() {
        let (found, tiers) = generations(LRU_GEN);
        let of = |number, age_ms, pages| Generation { number, age_ms, pages };
        assert_eq!(found, [of(4, 2500, 100), of(5, 40, 300)]);
        assert_eq!(tiers, [[30, 70, 5], [3, 7, 0]], "averages are no counts");
        assert_eq!(generations("nonsense\n1 2 x 3\n"), (vec![], vec![]));
    }

    fn view() -> View {
        let pages = Pages { visible: 512, standby: 256, ram: 1024, file: 256, same: 0 };
        let process = ProcessView {
            pid: 4712,
            name: "python3".into(),
            resident_bytes: 3 << 20,
            pages,
            faults: [10, 20, 30, 0, 40, 0, 0, 0, 0],
            waited_us: 500_000,
            managed: true,
        };
        let area = AreaView {
            name: "[heap]".into(),
            areas: 1,
            start: Some(0x5555_0000),
            bytes: 8 << 20,
            pages,
            cells: "VVVVVVVVBBBBBBBBRRRRRRRRFFFFFFS.".into(),
        };
        let tier = |name: &str, pages, occupied_bytes| Tier {
            name: name.into(),
            pages,
            occupied_bytes,
            ..Tier::default()
        };
        let some = Pressure { average: [450, 120, 30], total_us: 1 };
        let pressure = MemoryPressure { some, ..MemoryPressure::default() };
        View {
            at_us: 1_000_000,
            limit_bytes: 16 << 20,
            high_bytes: 16 << 20,
            used_bytes: 12 << 20,
            managing: true,
            pressure,
            faults: [10, 20, 30, 0, 40, 0, 0, 0, 0],
            tiers: vec![tier("ram", 1024, 1 << 20), tier("file", 256, 1 << 20)],
            multi_gen: true,
            lru_gen: LRU_GEN.into(),
            processes: vec![process],
            areas_of: 4712,
            areas: vec![area],
            ..View::default()
        }
    }

    #[test]
    fn a_run_fits_in_80_by_24_without_colours_and_says_all_of_it() {
        let mut later = view();
        later.at_us += 2_000_000;
        later.faults[2] += 100;
        later.processes[0].faults[2] += 100;
        later.processes[0].waited_us += 1_000_000;
        later.waited_us += 1_000_000;
        let seen = Seen::default().next(view()).next(later);
        let lines = run(PLAIN, &seen, 4712, 22);
        assert!(lines.len() <= 22);
        let text = text(&lines);
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line.is_ascii(), "{line}");
        }
        for part in [
            "12.0M of 16.0M",
            "threads 50.0% of the time   some 4.5/1.2/0.3%   full 0.0/0.0/0.0%",
            "ram 50  file 0",
            "4.0M in 1.0M    (4.00:1)",
            "by tier  0: 30 of 70, 5 kept  1: 3 of 7, 0 kept",
            "# 5 0.0s 1.2M  = 4 2.5s 400K",
            "    4712 python3       3.0M   1.0M   4.0M   1.0M      0      0    50      0  50%",
            "########========rrrrrrrrffffff1.",
        ] {
            let text = text.replace(">   4712", "    4712");
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
    }

    #[test]
    fn unmanaged_memory_is_shown_if_there_is_some() {
        let seen = Seen::default().next(view());
        assert!(!text(&run(PLAIN, &seen, 4712, 22)).contains("beside"));
        let unmanaged = vec!["24.0 MiB at most in 1 process statically linked (x)".to_owned()];
        let seen = Seen::default().next(View { unmanaged, ..view() });
        assert!(text(&run(PLAIN, &seen, 4712, 22)).contains("\nbeside   24.0 MiB at most"));
    }

    #[test]
    fn the_help_fits_in_80_by_24() {
        let lines = help(PLAIN, Duration::from_secs(1));
        assert!(lines.len() <= 22, "{}", lines.len());
        assert!(text(&lines).lines().all(|line| line.chars().count() <= 80), "{}", text(&lines));
    }

    #[test]
    fn the_first_view_of_a_run_has_no_rates() {
        let seen = Seen::default().next(view());
        assert_eq!(seen.faults(FaultKind::File), 0.0);
        // Rates begin anew with another run of the same number.
        let mut other = view();
        other.at_us = 10;
        assert_eq!(seen.next(other).faults(FaultKind::File), 0.0);
    }

    #[test]
    fn a_command_name_sends_no_escape_codes_to_the_terminal() {
        let run = ps::Run {
            pid: 1,
            memory_max_bytes: 1,
            used_bytes: 1,
            compressed_pages: 0,
            file_pages: 0,
            pressure_some_percent: 0.0,
            command: "x\x1b[2J\n".into(),
        };
        assert!(!text(&runs(PLAIN, &[run], 0, 10)).contains('\x1b'));
    }
}
