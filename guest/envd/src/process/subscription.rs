//! One subscriber's stream, as the body of an answer.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use protocol::connect::{Code, RpcError};
use tokio::time::{Instant, Sleep};

use super::fanout::{Fanout, keepalive_frame};
use super::queue::Queue;

/// Reads a queue, and speaks up when there is nothing to read for too long.
#[derive(Debug)]
pub(crate) struct Subscription {
    source: Option<Source>,
    keepalive: Duration,
    keepalive_timer: Pin<Box<Sleep>>,
    deadline_timer: Option<Pin<Box<Sleep>>>,
    /// Frames of a stream that has no queue.
    rest: Option<Bytes>,
}

#[derive(Debug)]
struct Source {
    queue: Arc<Queue>,
    fanout: Arc<Fanout>,
}

impl Subscription {
    /// A stream of what comes into `queue`. After `deadline` it ends with an error; the process goes on.
    pub(super) fn new(
        queue: Arc<Queue>,
        fanout: Arc<Fanout>,
        keepalive: Duration,
        deadline: Option<Duration>,
    ) -> Self {
        Self {
            source: Some(Source { queue, fanout }),
            keepalive,
            keepalive_timer: Box::pin(tokio::time::sleep(keepalive)),
            deadline_timer: deadline.map(|deadline| Box::pin(tokio::time::sleep(deadline))),
            rest: None,
        }
    }

    /// A stream of known frames: a process that has ended.
    pub(super) fn ended(frames: Bytes) -> Self {
        Self {
            source: None,
            keepalive: Duration::ZERO,
            keepalive_timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            deadline_timer: None,
            rest: Some(frames),
        }
    }

    /// The next frame; `None` at the end.
    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(source) = &self.source else { return Poll::Ready(self.rest.take()) };
        if let Some(timer) = &mut self.deadline_timer
            && timer.as_mut().poll(context).is_ready()
        {
            self.deadline_timer = None;
            let message = "the time given for this stream is over; the process goes on";
            source.fanout.cut_off(&source.queue, RpcError::new(Code::DeadlineExceeded, message));
        }
        match source.queue.poll_pop(context) {
            Poll::Ready(Some((frame, was_full))) => {
                if was_full {
                    source.fanout.note_change();
                }
                self.keepalive_timer.as_mut().reset(Instant::now() + self.keepalive);
                return Poll::Ready(Some(frame));
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        if self.keepalive_timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.keepalive_timer.as_mut().reset(Instant::now() + self.keepalive);
        Poll::Ready(Some(keepalive_frame()))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            source.queue.close();
            source.fanout.note_change();
        }
    }
}
