//! Counts the writes in flight to an upper, so that sealing can wait for exactly those.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Open: writes enter and leave without waiting for each other. Closed: none enters any more.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    inside: usize,
}

impl Gate {
    /// `None` when the gate is closed. The write lasts until the pass is dropped.
    pub(crate) fn enter(&self) -> Option<Pass<'_>> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        state.inside += 1;
        Some(Pass(self))
    }

    /// Lets none in any more and waits for those inside. False when some are still inside after `timeout`.
    pub(crate) fn close(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        state.closed = true;
        while state.inside > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.idle.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn reopen(&self) {
        self.lock().closed = false;
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One write in flight.
#[derive(Debug)]
pub(crate) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.inside -= 1;
        if state.inside == 0 && state.closed {
            self.0.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_waits_for_the_write_inside_and_refuses_the_next() {
        let gate = Gate::default();
        let pass = gate.enter().unwrap();
        assert!(!gate.close(Duration::from_millis(5)));
        assert!(gate.enter().is_none());
        drop(pass);
        assert!(gate.close(Duration::ZERO));
        gate.reopen();
        assert!(gate.enter().is_some());
    }
}
