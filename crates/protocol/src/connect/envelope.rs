//! The framing of streams.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::code::RpcError;

/// Bytes before each message: flags, then the length as 32 bits, big-endian.
pub const HEADER_BYTES: usize = 5;
/// The message is compressed. Never negotiated here.
pub const FLAG_COMPRESSED: u8 = 0x01;
/// The message is the last of the stream: `{}` or `{"error":{…}}`.
pub const FLAG_END_STREAM: u8 = 0x02;

/// One message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// [`FLAG_COMPRESSED`], [`FLAG_END_STREAM`] or neither.
    pub flags: u8,
    /// The JSON message.
    pub message: Vec<u8>,
}

impl Envelope {
    /// Whether this is the last message of the stream.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.flags & FLAG_END_STREAM != 0
    }

    /// The error in the last message of a stream, if it ended with one.
    ///
    /// # Errors
    /// When the message is not a JSON object of that shape.
    pub fn end_error(&self) -> Result<Option<RpcError>, serde_json::Error> {
        serde_json::from_slice::<EndMessage>(&self.message).map(|end| end.error)
    }
}

#[derive(Serialize, Deserialize)]
struct EndMessage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<RpcError>,
}

/// What is wrong with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvelopeError {
    /// A message announces more bytes than are accepted.
    TooLong {
        /// Announced length.
        bytes: u32,
        /// Accepted length.
        bytes_max: u32,
    },
    /// A message is compressed although that was not negotiated.
    Compressed,
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes, bytes_max } => {
                write!(formatter, "message of {bytes} bytes is longer than the {bytes_max} accepted")
            }
            Self::Compressed => formatter.write_str("message is compressed, which was not negotiated"),
        }
    }
}

impl std::error::Error for EnvelopeError {}

/// Frames a message that `write` appends to the buffer it is given. `capacity_bytes` is a hint that spares copies.
///
/// A message longer than the format can say (4 GiB) is cut to an empty one; callers bound theirs far below.
pub fn encode(flags: u8, capacity_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + capacity_bytes);
    frame.extend_from_slice(&[flags, 0, 0, 0, 0]);
    write(&mut frame);
    match u32::try_from(frame.len() - HEADER_BYTES) {
        Ok(length) => frame[1..HEADER_BYTES].copy_from_slice(&length.to_be_bytes()),
        Err(_) => frame.truncate(HEADER_BYTES),
    }
    frame
}

/// The last frame of a stream: success, or the reason of its failure.
#[must_use]
pub fn end_stream(error: Option<RpcError>) -> Vec<u8> {
    let message = EndMessage { error };
    encode(FLAG_END_STREAM, 64, |frame| {
        // Writing strings to memory cannot fail.
        let _ = serde_json::to_writer(frame, &message);
    })
}

/// Cuts a byte stream into messages. Holds at most one incomplete message and what was pushed behind it.
#[derive(Debug)]
pub struct EnvelopeDecoder {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that were handed out.
    consumed: usize,
    message_bytes_max: u32,
}

impl EnvelopeDecoder {
    /// A decoder that refuses messages longer than `message_bytes_max`.
    #[must_use]
    pub fn new(message_bytes_max: u32) -> Self {
        Self { buffer: Vec::new(), consumed: 0, message_bytes_max }
    }

    /// Adds received bytes. Call [`Self::next_envelope`] until it has no more before adding again.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if it has arrived.
    ///
    /// # Errors
    /// When the stream breaks the rules; it cannot be read further then.
    pub fn next_envelope(&mut self) -> Result<Option<Envelope>, EnvelopeError> {
        let rest = &self.buffer[self.consumed..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [flags, length @ ..] = *header;
        if flags & FLAG_COMPRESSED != 0 {
            return Err(EnvelopeError::Compressed);
        }
        let bytes = u32::from_be_bytes(length);
        if bytes > self.message_bytes_max {
            return Err(EnvelopeError::TooLong { bytes, bytes_max: self.message_bytes_max });
        }
        let Some(message) = usize::try_from(bytes).ok().and_then(|length| rest.get(..length)) else {
            return Ok(None);
        };
        let message = message.to_vec();
        self.consumed += HEADER_BYTES + message.len();
        Ok(Some(Envelope { flags, message }))
    }

    /// Whether bytes of an incomplete message are left.
    #[must_use]
    pub fn has_partial(&self) -> bool {
        self.consumed < self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Code;
    use super::*;

    fn decode_all(bytes: &[u8], chunk_bytes: usize, bytes_max: u32) -> Result<Vec<Envelope>, EnvelopeError> {
        let mut decoder = EnvelopeDecoder::new(bytes_max);
        let mut envelopes = Vec::new();
        for chunk in bytes.chunks(chunk_bytes.max(1)) {
            decoder.push(chunk);
            while let Some(envelope) = decoder.next_envelope()? {
                envelopes.push(envelope);
            }
        }
        Ok(envelopes)
    }

    #[test]
    fn the_layout_is_flags_length_message() {
        assert_eq!(encode(0, 0, |frame| frame.extend_from_slice(b"{}")), b"\0\0\0\0\x02{}");
        assert_eq!(end_stream(None), b"\x02\0\0\0\x02{}");
    }

    #[test]
    fn a_failed_stream_says_why() {
        let error = RpcError::new(Code::DeadlineExceeded, "too slow");
        let envelopes = decode_all(&end_stream(Some(error.clone())), 3, 1000).unwrap();
        assert!(envelopes[0].is_end());
        assert_eq!(envelopes[0].end_error().unwrap(), Some(error));
    }

    #[test]
    fn too_long_and_compressed_messages_are_refused_before_they_arrive() {
        assert_eq!(
            decode_all(b"\0\xff\xff\xff\xff", 5, 1000),
            Err(EnvelopeError::TooLong { bytes: u32::MAX, bytes_max: 1000 })
        );
        assert_eq!(decode_all(b"\x01\0\0\0\x01x", 6, 1000), Err(EnvelopeError::Compressed));
    }

    proptest! {
        #[test]
        fn any_cut_of_a_stream_gives_the_same_messages(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            chunk_bytes in 1usize..64,
        ) {
            let stream: Vec<u8> =
                messages.iter().flat_map(|message| encode(0, 0, |frame| frame.extend_from_slice(message))).collect();
            let decoded = decode_all(&stream, chunk_bytes, 1000).unwrap();
            prop_assert_eq!(decoded.into_iter().map(|envelope| envelope.message).collect::<Vec<_>>(), messages);
        }

        #[test]
        fn arbitrary_bytes_never_panic_nor_grow_the_buffer(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut decoder = EnvelopeDecoder::new(64);
            for chunk in bytes.chunks(7) {
                decoder.push(chunk);
                prop_assert!(decoder.buffer.len() <= HEADER_BYTES + 64 + chunk.len());
                loop {
                    match decoder.next_envelope() {
                        Ok(Some(envelope)) => prop_assert!(envelope.message.len() <= 64),
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
            }
        }
    }
}
