//! One process' events to all its subscribers.
//!
//! Every subscriber gets every byte from its subscription on, or its stream ends with an error: never a gap. Nobody
//! waits for a subscriber that has stopped reading while another one reads: after a grace it is cut off. When all have
//! stopped, the process itself waits at its pipe; when there are none, its output is thrown away.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::connect::{Code, RpcError, encode, end_stream};
use protocol::envd::{EndEvent, EventMessage, ProcessEvent, StartEvent};
use tokio::sync::Notify;

use super::queue::{Queue, Room};
use crate::daemon::lock;

/// How long a reading subscriber waits for one that has stopped.
const STALL_GRACE: Duration = Duration::from_secs(1);

/// The subscribers of one process.
#[derive(Debug, Default)]
pub(super) struct Fanout {
    state: Mutex<State>,
    /// A subscriber came, went or made room.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queues: Vec<Arc<Queue>>,
    /// The last frames, once the process has ended.
    end: Option<Bytes>,
}

/// What a writer has to do next.
enum Step {
    Done,
    WaitUntil(Option<Instant>),
}

impl Fanout {
    /// The start event.
    pub(super) fn start_frame(pid: u32) -> Bytes {
        event_frame(ProcessEvent { start: Some(StartEvent { pid }), ..ProcessEvent::default() }).into()
    }

    /// Adds a subscriber, whose stream begins with the start event. After the process' end it gets the end at once.
    pub(super) fn subscribe(&self, pid: u32) -> Arc<Queue> {
        let queue = Arc::new(Queue::default());
        queue.push(Self::start_frame(pid));
        let mut state = lock(&self.state);
        match &state.end {
            Some(end) => {
                queue.push(end.clone());
                queue.finish();
            }
            None => state.queues.push(Arc::clone(&queue)),
        }
        drop(state);
        self.changed.notify_waiters();
        queue
    }

    /// Hands a frame to all subscribers, waiting for room as the rules above say.
    pub(super) async fn publish(&self, frame: Bytes) {
        loop {
            // Registered before looking, so that no change is missed in between.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.try_publish(&frame, Instant::now()) {
                Step::Done => return,
                Step::WaitUntil(None) => changed.await,
                Step::WaitUntil(Some(until)) => {
                    let _ = tokio::time::timeout_at(until.into(), changed).await;
                }
            }
        }
    }

    fn try_publish(&self, frame: &Bytes, now: Instant) -> Step {
        let mut state = lock(&self.state);
        let mut somebody_reads = false;
        let mut first_full = None;
        state.queues.retain(|queue| match queue.room(now) {
            Room::Closed => false,
            Room::Free => {
                somebody_reads = true;
                true
            }
            Room::FullSince(since) => {
                first_full = Some(first_full.map_or(since, |first: Instant| first.min(since)));
                true
            }
        });
        let Some(first_full) = first_full else {
            state.queues.iter().for_each(|queue| queue.push(frame.clone()));
            return Step::Done;
        };
        if !somebody_reads {
            return Step::WaitUntil(None);
        }
        if now < first_full + STALL_GRACE {
            return Step::WaitUntil(Some(first_full + STALL_GRACE));
        }
        // Cutting off makes room: the caller looks again at once.
        state.queues.retain(|queue| {
            let stalled = matches!(queue.room(now), Room::FullSince(since) if now >= since + STALL_GRACE);
            if stalled {
                cut_off(
                    queue,
                    RpcError::new(
                        Code::ResourceExhausted,
                        "the stream was not read while others were waiting; connect again",
                    ),
                );
            }
            !stalled
        });
        Step::WaitUntil(Some(now))
    }

    /// Ends all streams with the process' end.
    pub(super) fn finish(&self, end: &EndEvent) {
        let frames = end_frames(end);
        let mut state = lock(&self.state);
        for queue in state.queues.drain(..) {
            queue.push(frames.clone());
            queue.finish();
        }
        state.end = Some(frames);
    }

    /// Ends one stream with an error; the others go on.
    pub(super) fn cut_off(&self, queue: &Arc<Queue>, error: RpcError) {
        lock(&self.state).queues.retain(|candidate| !Arc::ptr_eq(candidate, queue));
        cut_off(queue, error);
        self.changed.notify_waiters();
    }

    /// A subscriber made room or has gone.
    pub(super) fn note_change(&self) {
        self.changed.notify_waiters();
    }
}

fn cut_off(queue: &Queue, error: RpcError) {
    queue.push(end_stream(Some(error)).into());
    queue.finish();
}

fn event_frame(event: ProcessEvent) -> Vec<u8> {
    let message = EventMessage { event: Some(event) };
    encode(0, 64, |frame| {
        // Writing plain values to memory cannot fail.
        let _ = serde_json::to_writer(frame, &message);
    })
}

/// The keep-alive event.
pub(super) fn keepalive_frame() -> Bytes {
    event_frame(ProcessEvent { keepalive: Some(protocol::envd::Empty {}), ..ProcessEvent::default() }).into()
}

/// The end event and the end of the stream.
pub(super) fn end_frames(end: &EndEvent) -> Bytes {
    let mut frames = event_frame(ProcessEvent { end: Some(end.clone()), ..ProcessEvent::default() });
    frames.extend_from_slice(&end_stream(None));
    frames.into()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    const FRAME: Bytes = Bytes::from_static(&[7; 10_000]);

    fn read_all(queue: &Queue) -> (usize, bool) {
        let mut bytes = 0;
        loop {
            match queue.poll_pop(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some((frame, _))) => bytes += frame.len(),
                Poll::Ready(None) => return (bytes, true),
                Poll::Pending => return (bytes, false),
            }
        }
    }

    /// Publishes until the only reader's queue is full.
    async fn fill(fanout: &Fanout) {
        while tokio::time::timeout(Duration::from_millis(20), fanout.publish(FRAME)).await.is_ok() {}
    }

    #[tokio::test]
    async fn without_subscribers_output_is_thrown_away() {
        let fanout = Fanout::default();
        for _ in 0..1000 {
            fanout.publish(FRAME).await;
        }
    }

    #[tokio::test]
    async fn the_only_subscriber_is_waited_for_and_loses_nothing() {
        let fanout = Arc::new(Fanout::default());
        let queue = fanout.subscribe(1);
        let (start_bytes, _) = read_all(&queue);
        assert!(start_bytes > 0);
        let writer = tokio::spawn({
            let fanout = Arc::clone(&fanout);
            async move {
                for _ in 0..200 {
                    fanout.publish(FRAME).await;
                }
            }
        });
        let mut bytes = 0;
        while bytes < 200 * FRAME.len() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let (read, _) = read_all(&queue);
            assert!(read < 300 << 10, "more than the bound was queued: {read}");
            bytes += read;
            fanout.note_change();
        }
        writer.await.unwrap();
        assert_eq!(bytes, 200 * FRAME.len());
    }

    #[tokio::test]
    async fn a_new_subscriber_gets_output_at_once_although_another_has_stopped_reading() {
        let fanout = Fanout::default();
        let stalled = fanout.subscribe(1);
        fill(&fanout).await;
        tokio::time::sleep(STALL_GRACE).await;
        let fresh = fanout.subscribe(1);
        read_all(&fresh);
        tokio::time::timeout(Duration::from_millis(100), fanout.publish(FRAME)).await.unwrap();
        assert_eq!(read_all(&fresh), (FRAME.len(), false));
        let (_, ended) = read_all(&stalled);
        assert!(ended, "the stalled stream must end, not skip");
    }

    #[tokio::test]
    async fn a_reading_subscriber_is_delayed_by_a_stalled_one_only_for_the_grace() {
        let fanout = Fanout::default();
        let _stalled = fanout.subscribe(1);
        let reading = fanout.subscribe(1);
        let start = Instant::now();
        for _ in 0..100 {
            fanout.publish(FRAME).await;
            read_all(&reading);
        }
        let took = start.elapsed();
        assert!(took >= STALL_GRACE && took < STALL_GRACE * 2, "{took:?}");
    }

    #[tokio::test]
    async fn a_subscriber_that_goes_releases_the_writer() {
        let fanout = Arc::new(Fanout::default());
        let queue = fanout.subscribe(1);
        fill(&fanout).await;
        let writer = tokio::spawn({
            let fanout = Arc::clone(&fanout);
            async move { fanout.publish(FRAME).await }
        });
        tokio::task::yield_now().await;
        queue.close();
        fanout.note_change();
        tokio::time::timeout(Duration::from_secs(1), writer).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_comes_after_the_end_gets_the_end() {
        let fanout = Fanout::default();
        fanout.finish(&EndEvent::default());
        let (bytes, ended) = read_all(&fanout.subscribe(1));
        assert!(ended && bytes > 0);
    }
}
