//! Building requests and walking replies (netlink(7)): a 16-byte header, a fixed structure, then attributes; all in the
//! machine's byte order, each part padded to 4 bytes.

use std::io;

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTERRUPTED: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Bits of an attribute's type that are flags.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

/// A request under construction.
#[derive(Debug)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(super) fn new(kind: u16, flags: u16) -> Self {
        // A dump ends with its own mark; everything else asks for an acknowledgement.
        let acknowledge = if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | acknowledge).to_ne_bytes());
        Self { bytes }
    }

    /// Appends a fixed structure.
    pub(super) fn push(&mut self, structure: &[u8]) {
        self.bytes.extend_from_slice(structure);
        self.pad();
    }

    /// Appends an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |message| message.bytes.extend_from_slice(value));
    }

    /// Appends a zero-terminated text attribute.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.nested(kind, |message| {
            message.bytes.extend_from_slice(value.as_bytes());
            message.bytes.push(0);
        });
    }

    /// Appends an attribute whose content `fill` writes.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_HEADER_BYTES]);
        fill(self);
        // Attributes of ours are tens of bytes; `finish` refuses a message for which this could have been cut.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.pad();
    }

    /// The finished request.
    pub(super) fn finish(mut self, sequence: u32) -> io::Result<Vec<u8>> {
        let length = u16::try_from(self.bytes.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "netlink request too long"))?;
        self.bytes[0..4].copy_from_slice(&u32::from(length).to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        Ok(self.bytes)
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One reply without its header.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) payload: Vec<u8>,
}

/// Takes one datagram apart, appending what answers request `sequence`. True when the answer is complete.
pub(super) fn replies(mut datagram: &[u8], sequence: u32, gathered: &mut Vec<Reply>) -> io::Result<bool> {
    while let Some(length) = number(datagram, 0) {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed netlink reply");
        let length = usize::try_from(length).map_err(|_| malformed())?;
        let payload = datagram.get(HEADER_BYTES..length).ok_or_else(malformed)?;
        let kind = short(datagram, 4).ok_or_else(malformed)?;
        let flags = short(datagram, 6).ok_or_else(malformed)?;
        if number(datagram, 8) == Some(sequence) {
            if flags & NLM_F_DUMP_INTERRUPTED != 0 && kind != NLMSG_ERROR {
                return Err(io::Error::new(
                    io::ErrorKind::Interrupted,
                    "the network changed during a listing",
                ));
            }
            match kind {
                NLMSG_ERROR => {
                    // A negative errno, or 0 for an acknowledgement.
                    let code = number(payload, 0).ok_or_else(malformed)?.cast_signed();
                    return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                NLMSG_DONE => return Ok(true),
                _ => gathered.push(Reply { payload: payload.to_vec() }),
            }
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

/// The 32-bit number at `offset`.
pub(super) fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

fn short(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..offset + 2)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

/// The first attribute of type `kind` behind a fixed structure of `skip` bytes.
pub(super) fn attribute(payload: &[u8], skip: usize, kind: u16) -> Option<&[u8]> {
    attributes(payload.get(skip..)?).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// All attributes as (type, value), up to the first malformed one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(short(bytes, 0)?);
        let kind = short(bytes, 2)? & ATTRIBUTE_TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(kind: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut message = Message::new(kind, 0);
        message.push(payload);
        message.finish(sequence).unwrap()
    }

    #[test]
    fn an_acknowledgement_completes_and_an_error_carries_its_number() {
        let mut gathered = Vec::new();
        assert!(replies(&reply(NLMSG_ERROR, 3, &0_i32.to_ne_bytes()), 3, &mut gathered).unwrap());
        let error = replies(&reply(NLMSG_ERROR, 3, &(-17_i32).to_ne_bytes()), 3, &mut gathered).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn replies_to_other_requests_are_passed_over() {
        let mut gathered = Vec::new();
        let mut datagram = reply(16, 1, b"old!");
        datagram.extend(reply(16, 2, b"new!"));
        assert!(!replies(&datagram, 2, &mut gathered).unwrap());
        assert_eq!(gathered.len(), 1);
        assert_eq!(gathered[0].payload, b"new!");
    }

    #[test]
    fn a_reply_that_claims_more_than_it_has_is_an_error() {
        let mut datagram = reply(16, 1, b"data");
        datagram[0..4].copy_from_slice(&4096_u32.to_ne_bytes());
        assert!(replies(&datagram, 1, &mut Vec::new()).is_err());
        datagram[0..4].copy_from_slice(&3_u32.to_ne_bytes());
        assert!(replies(&datagram, 1, &mut Vec::new()).is_err());
    }

    #[test]
    fn attributes_that_claim_too_much_or_too_little_end_the_walk() {
        for length in [0_u16, 3, 200] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([1, 0, 9, 9, 9, 9]);
            assert_eq!(attributes(&bytes).count(), 0, "{length}");
        }
    }
}
