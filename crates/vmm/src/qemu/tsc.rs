//! Frequency of the time stamp counter.
//!
//! Under emulation a guest's counter is the host's. A guest kernel left to measure it does so against the emulated
//! interval timer, which fails when the host is busy: then about one boot in five waits for a clock tick for ever, with
//! nothing on its console. So the host measures, where that is reliable, and tells the guest.

use std::arch::x86_64::_rdtsc;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

const INTERVAL: Duration = Duration::from_millis(20);
/// Readings of clock and counter that were disturbed in between are told by their width; the narrowest of this many counts.
const READINGS: u32 = 16;

/// Counts per millisecond, or `None` where the counter does not advance like a clock.
pub(super) fn measure_khz() -> Option<u32> {
    let first = measure_once()?;
    let second = measure_once()?;
    // Two intervals that differ by more than 0.1 % mean a counter that follows the processor's speed.
    (first.abs_diff(second) <= first / 1000).then_some(second)
}

fn measure_once() -> Option<u32> {
    let (start_ns, start_count) = read();
    std::thread::sleep(INTERVAL);
    let (end_ns, end_count) = read();
    let counts = u128::from(end_count.checked_sub(start_count)?);
    let nanoseconds = u128::try_from(end_ns.checked_sub(start_ns)?).ok().filter(|&elapsed| elapsed > 0)?;
    u32::try_from(counts * 1_000_000 / nanoseconds).ok().filter(|&khz| khz > 0)
}

/// Clock in nanoseconds and counter at one moment, as nearly as one process can tell.
fn read() -> (i128, u64) {
    let readings = (0..READINGS).map(|_| {
        let before = counter();
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::MonotonicRaw);
        let width = counter().saturating_sub(before);
        (width, i128::from(tv_sec) * 1_000_000_000 + i128::from(tv_nsec), before + width / 2)
    });
    let (_, nanoseconds, count) = readings.min_by_key(|&(width, ..)| width).unwrap_or_default();
    (nanoseconds, count)
}

fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it only reads a counter.
    unsafe { _rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_measurements_agree() {
        let measured: Vec<u32> = (0..3).filter_map(|_| measure_khz()).collect();
        let (least, most) = (measured.iter().min(), measured.iter().max());
        let (Some(&least), Some(&most)) = (least, most) else { panic!("no measurement succeeded") };
        assert!(most - least <= most / 500, "{measured:?}");
        assert!((500_000..10_000_000).contains(&most), "{most} kHz is no processor's frequency");
    }
}
