//! What one subscriber has still to read.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use crate::daemon::lock;

/// A queue with this much in it takes no more; it is exceeded by at most one frame.
const BYTES_MAX: usize = 256 << 10;
/// What a frame costs beside its bytes: many tiny frames must count too.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// A bounded queue of frames with one reader.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// When a writer first found no room; none while there is.
    full_since: Option<Instant>,
    is_finished: bool,
    reader_is_gone: bool,
    reader: Option<Waker>,
}

/// What a writer finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    FullSince(Instant),
    /// Nobody will read any more.
    Closed,
}

fn cost(frame: &Bytes) -> usize {
    frame.len() + FRAME_OVERHEAD_BYTES
}

impl Queue {
    /// Whether a frame may be pushed now.
    pub(super) fn room(&self, now: Instant) -> Room {
        let mut state = lock(&self.state);
        if state.reader_is_gone || state.is_finished {
            Room::Closed
        } else if state.bytes < BYTES_MAX {
            state.full_since = None;
            Room::Free
        } else {
            Room::FullSince(*state.full_since.get_or_insert(now))
        }
    }

    /// Adds a frame. Writers ask for [`Self::room`] first; the frames of a stream's beginning and end go without.
    pub(super) fn push(&self, frame: Bytes) {
        let mut state = lock(&self.state);
        if state.is_finished || state.reader_is_gone {
            return;
        }
        state.bytes += cost(&frame);
        state.frames.push_back(frame);
        state.wake();
    }

    /// Ends the stream after the frames that are queued.
    pub(super) fn finish(&self) {
        let mut state = lock(&self.state);
        state.is_finished = true;
        state.wake();
    }

    /// The next frame, `None` at the stream's end. The flag says that there was no room before.
    pub(super) fn poll_pop(&self, context: &mut Context<'_>) -> Poll<Option<(Bytes, bool)>> {
        let mut state = lock(&self.state);
        if let Some(frame) = state.frames.pop_front() {
            let was_full = state.bytes >= BYTES_MAX;
            state.bytes -= cost(&frame);
            return Poll::Ready(Some((frame, was_full)));
        }
        if state.is_finished {
            return Poll::Ready(None);
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    /// The reader has gone; what is queued is thrown away.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.reader_is_gone = true;
        state.frames = VecDeque::new();
        state.bytes = 0;
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop(queue: &Queue) -> Poll<Option<(Bytes, bool)>> {
        queue.poll_pop(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn frames_come_in_order_and_then_the_end() {
        let queue = Queue::default();
        assert!(pop(&queue).is_pending());
        queue.push(Bytes::from_static(b"1"));
        queue.push(Bytes::from_static(b"2"));
        queue.finish();
        queue.push(Bytes::from_static(b"late"));
        assert_eq!(pop(&queue), Poll::Ready(Some((Bytes::from_static(b"1"), false))));
        assert_eq!(pop(&queue), Poll::Ready(Some((Bytes::from_static(b"2"), false))));
        assert_eq!(pop(&queue), Poll::Ready(None));
    }

    #[test]
    fn a_queue_fills_up_and_says_since_when() {
        let queue = Queue::default();
        let start = Instant::now();
        let mut pushed = 0;
        while queue.room(start) == Room::Free {
            queue.push(Bytes::from_static(&[0; 1000]));
            pushed += 1;
        }
        assert!(pushed * (1000 + FRAME_OVERHEAD_BYTES) < BYTES_MAX + 2000);
        let later = start + std::time::Duration::from_secs(1);
        assert_eq!(queue.room(later), Room::FullSince(start));
        assert!(matches!(pop(&queue), Poll::Ready(Some((_, true)))));
        assert_eq!(queue.room(later), Room::Free);
    }

    #[test]
    fn a_closed_queue_keeps_nothing() {
        let queue = Queue::default();
        queue.push(Bytes::from_static(b"1"));
        queue.close();
        queue.push(Bytes::from_static(b"2"));
        assert_eq!(queue.room(Instant::now()), Room::Closed);
        assert_eq!(lock(&queue.state).frames.len(), 0);
    }
}
