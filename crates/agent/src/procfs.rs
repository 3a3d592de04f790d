//! What the sandbox's kernel tells about memory and processes. Read each time; nothing is
//! kept.

use std::fs;
use std::io;

/// `/proc/meminfo`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    /// What programs can still get, caches given up included.
    pub(crate) available: u64,
    pub(crate) cached: u64,
}

impl Memory {
    /// # Errors
    /// The kernel's, and `InvalidData` when fields are missing.
    pub(crate) fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/meminfo")?;
        Self::parse(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/meminfo lacks MemTotal or MemFree",
            )
        })
    }

    pub(crate) fn used(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line
                .trim_start_matches(':')
                .split_whitespace()
                .next()?
                .parse()
                .ok()?;
            kib.checked_mul(1024)
        };
        let cached = field("Cached").unwrap_or(0);
        Some(Self {
            total: field("MemTotal")?,
            available: match field("MemAvailable") {
                Some(available) => available,
                None => field("MemFree")?.saturating_add(cached),
            },
            cached,
        })
    }
}

/// One process of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: u32,
    pub(crate) session: u32,
    /// Processor time of it and of the children it waited for, in clock ticks.
    pub(crate) ticks: u64,
    pub(crate) threads: u64,
    /// When it was started, in clock ticks since the kernel was.
    pub(crate) started: u64,
    /// Resident memory in pages; none once it has ended.
    pub(crate) pages: u64,
}

impl Stat {
    /// Every process there is; those that end meanwhile are left out.
    ///
    /// # Errors
    /// The kernel's, when `/proc` cannot be listed.
    pub(crate) fn all() -> io::Result<Vec<Self>> {
        let pids = fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let stat = |pid| {
            let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
            Self::of(pid, &String::from_utf8_lossy(&line))
        };
        Ok(pids.filter_map(stat).collect())
    }

    /// The process `pid`, whose line this should be. gVisor writes 0 for one that is just
    /// being reaped, and a signal to "0" would go to the agent's own group.
    fn of(pid: u32, line: &str) -> Option<Self> {
        Self::parse(line).filter(|stat| stat.pid == pid && pid != 0)
    }

    /// `pid (name) state ppid pgrp session ...` (proc(5)); the name may hold anything.
    fn parse(line: &str) -> Option<Self> {
        let (head, rest) = line.rsplit_once(") ")?;
        let (pid, _name) = head.split_once(" (")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Numbered as in proc(5), where the state is the third field.
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok());
        let ticks = [14, 15, 16, 17].map(field).into_iter().flatten();
        Some(Self {
            pid: pid.parse().ok()?,
            session: u32::try_from(field(6)?).ok()?,
            ticks: ticks.sum(),
            threads: field(20)?,
            started: field(22)?,
            pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_with_and_without_available() {
        let memory = Memory::parse("MemTotal:  100 kB\nMemFree: 40 kB\nCached: 10 kB\n").unwrap();
        assert_eq!(
            (memory.total, memory.used(), memory.cached),
            (102_400, 51_200, 10_240)
        );
        let text = "MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 60 kB\nSwapCached: 9 kB\n";
        let memory = Memory::parse(text).unwrap();
        assert_eq!((memory.used(), memory.cached), (40_960, 0));
        for rubbish in ["", "MemTotal: x kB\nMemFree: 1 kB", "MemFree: 1 kB"] {
            assert_eq!(Memory::parse(rubbish), None, "{rubbish}");
        }
    }

    #[test]
    fn names_cannot_lie() {
        let line = "7 (a) R 1 1 1) S 1 7 5 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 9 8 77 6";
        let expected = Stat {
            pid: 7,
            session: 5,
            ticks: 10,
            threads: 1,
            started: 9,
            pages: 77,
        };
        assert_eq!(Stat::parse(line), Some(expected));
        for rubbish in ["", "7 (a", "7 (a) S 1 2", "x (a) S 1 7 5"] {
            assert_eq!(Stat::parse(rubbish), None, "{rubbish}");
        }
    }

    #[test]
    fn one_being_reaped_is_not_everybody() {
        let line = "0 (a) Z 1 7 5 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 9 8 77 6";
        assert_eq!(Stat::of(7, line), None);
        assert_eq!(Stat::of(0, line), None);
        assert!(Stat::of(7, &line.replacen('0', "7", 1)).is_some());
    }

    #[test]
    fn finds_itself() {
        let own = std::process::id();
        let all = Stat::all().unwrap();
        assert!(all.iter().any(|stat| stat.pid == own && stat.pages > 0));
    }
}
