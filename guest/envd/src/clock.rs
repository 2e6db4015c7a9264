//! Setting the guest's clock: after a restore it still shows the time of the snapshot.

use std::time::{Duration, SystemTime};

/// Behind by more than this, certificates may seem not yet valid and builds see time go backwards between machines.
const BEHIND_MAX: Duration = Duration::from_millis(50);
/// Ahead, the message's own way explains a little; setting a clock back disturbs programs, so only a lot counts.
const AHEAD_MAX: Duration = Duration::from_secs(5);

/// Whether a guest whose clock shows `guest` should take over `node`.
pub(crate) fn needs_setting(guest: SystemTime, node: SystemTime) -> bool {
    match node.duration_since(guest) {
        Ok(behind) => behind > BEHIND_MAX,
        Err(ahead) => ahead.duration() > AHEAD_MAX,
    }
}

/// Sets the system clock.
pub(crate) fn set(time: SystemTime) -> std::io::Result<()> {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = rustix::time::Timespec {
        tv_sec: i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since_epoch.subsec_nanos().into(),
    };
    Ok(rustix::time::clock_settime(rustix::time::ClockId::Realtime, time)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_clearly_behind_or_far_ahead_is_set() {
        let node = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert!(!needs_setting(node, node));
        assert!(!needs_setting(node - Duration::from_millis(50), node));
        assert!(needs_setting(node - Duration::from_millis(51), node));
        assert!(needs_setting(node - Duration::from_secs(75 * 3600), node));
        assert!(!needs_setting(node + Duration::from_secs(5), node));
        assert!(needs_setting(node + Duration::from_millis(5001), node));
    }
}
