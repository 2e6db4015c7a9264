//! `GET /metrics`.

use std::sync::Mutex;
use std::time::SystemTime;

use protocol::envd::Metrics;

/// Processor time since boot, in clock ticks.
#[derive(Debug, Clone, Copy, Default)]
struct CpuTimes {
    busy: u64,
    total: u64,
}

/// Remembers the last reading, because use is a difference of two.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Mutex<CpuTimes>,
}

impl Meter {
    /// Reads the kernel's counters. What cannot be read is zero.
    pub(crate) fn read(&self) -> Metrics {
        let (cpu_count, now) = parse_stat(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
        let last = std::mem::replace(&mut *crate::daemon::lock(&self.last), now);
        let memory = Memory::parse(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let (disk_used, disk_total) = disk_bytes();
        Metrics {
            ts: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .ok()
                .and_then(|elapsed| i64::try_from(elapsed.as_secs()).ok())
                .unwrap_or_default(),
            cpu_count,
            cpu_used_pct: used_percent(last, now),
            mem_total: memory.total,
            mem_used: memory.used,
            mem_cache: memory.cache,
            mem_total_mib: memory.total >> 20,
            mem_used_mib: memory.used >> 20,
            disk_used,
            disk_total,
        }
    }
}

fn used_percent(last: CpuTimes, now: CpuTimes) -> f32 {
    let total = now.total.saturating_sub(last.total);
    let busy = now.busy.saturating_sub(last.busy).min(total);
    if total == 0 {
        return 0.0;
    }
    // Hundredths of a percent, at most 10 000: exact in any float.
    let hundredths = u16::try_from(u128::from(busy) * 10_000 / u128::from(total)).unwrap_or(10_000);
    f32::from(hundredths) / 100.0
}

/// The first line of `/proc/stat` sums all processors: user nice system idle iowait irq softirq steal.
fn parse_stat(stat: &str) -> (u32, CpuTimes) {
    let mut lines = stat.lines();
    let ticks: Vec<u64> = lines
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    let total: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    let count = lines.take_while(|line| line.starts_with("cpu")).count();
    (u32::try_from(count).unwrap_or(u32::MAX), CpuTimes { busy: total - idle, total })
}

/// Bytes of memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Memory {
    total: u64,
    used: u64,
    cache: u64,
}

impl Memory {
    fn parse(meminfo: &str) -> Self {
        let bytes = |key: &str| -> u64 {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib = line.and_then(|value| value.split_ascii_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0).saturating_mul(1024)
        };
        let total = bytes("MemTotal");
        Self { total, used: total.saturating_sub(bytes("MemAvailable")), cache: bytes("Cached") }
    }
}

/// Used and total bytes of the root file system.
fn disk_bytes() -> (u64, u64) {
    let Ok(disk) = rustix::fs::statvfs("/") else { return (0, 0) };
    let used = disk.f_blocks.saturating_sub(disk.f_bfree);
    (used.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_use_is_the_busy_share_between_two_readings() {
        let (count, first) = parse_stat("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\nintr 1\n");
        assert_eq!(count, 2);
        let (_, second) = parse_stat("cpu  20 0 15 145 10 5 5 0 0 0\ncpu0 1 1\n");
        assert!((used_percent(first, second) - 25.0).abs() < 0.01);
        assert!(used_percent(second, second).abs() < 0.01);
        assert!(used_percent(second, first).abs() < 0.01);
    }

    #[test]
    fn memory_is_reported_in_bytes() {
        let memory =
            Memory::parse("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nCached: 200 kB\n");
        assert_eq!(memory, Memory { total: 1_024_000, used: 409_600, cache: 204_800 });
        assert_eq!(Memory::parse("nonsense"), Memory::default());
    }

    #[test]
    fn the_machine_has_processors_memory_and_a_disk() {
        let metrics = Meter::default().read();
        assert!(metrics.cpu_count > 0 && metrics.mem_total > metrics.mem_used && metrics.disk_total > 0);
    }
}
