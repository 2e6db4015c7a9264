//! What keeper and server say to each other: packets of fixed layout, host byte order (both are on one host).
//!
//! | packet | layout |
//! | --- | --- |
//! | offer, keeper to server | magic u32, kind u32 = 0, kernel minor u32, serve-on-first u32, flags u64; channels as SCM_RIGHTS |
//! | busy, keeper to server | magic u32, kind u32 = 1, process id i32, 0 u32, 0 u64 |
//! | command, server to keeper | kind u32 = 1 (unmount and end) |
//! | result, keeper to server | error number i32, 0 for success |

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::super::abi::{Encoder, Fields};
use super::super::mount::Session;
use super::CHANNELS_MAX;

/// "aek1": also the version of the layout.
const MAGIC: u32 = u32::from_le_bytes(*b"aek1");
const OFFER_BYTES: usize = 24;
const KIND_OFFER: u32 = 0;
const KIND_BUSY: u32 = 1;
const COMMAND_UNMOUNT: u32 = 1;

/// What goes with the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) session: Session,
    /// The first channel may be read from; otherwise it serves for notifications only.
    pub(super) serve_on_first: bool,
}

/// A keeper's first packet.
#[derive(Debug)]
pub(super) enum Greeting {
    /// The channels are yours.
    Offer(Offer, Vec<OwnedFd>),
    /// Another process serves.
    Busy(i32),
}

/// A server's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Unmount and end.
    Unmount,
}

pub(super) fn send_offer(socket: &OwnedFd, offer: Offer, channels: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut packet = [0; OFFER_BYTES];
    Encoder::new(&mut packet)
        .u32(MAGIC)
        .u32(KIND_OFFER)
        .u32(offer.session.kernel_minor)
        .u32(offer.serve_on_first.into())
        .u64(offer.session.flags);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CHANNELS_MAX as usize))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(channels)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn send_busy(socket: &OwnedFd, process_id: i32) -> io::Result<()> {
    let mut packet = [0; OFFER_BYTES];
    Encoder::new(&mut packet).u32(MAGIC).u32(KIND_BUSY).u32(process_id.cast_unsigned());
    rustix::net::send(socket, &packet, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn receive_greeting(socket: &OwnedFd) -> io::Result<Greeting> {
    let mut packet = [0; OFFER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CHANNELS_MAX as usize))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut packet)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut channels = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            channels.extend(descriptors);
        }
    }
    let strange =
        || io::Error::new(io::ErrorKind::InvalidData, "it speaks another version of the keeper's protocol");
    let mut fields = Fields(&packet[..received.bytes]);
    let mut word = || fields.u32().map_err(|_| strange());
    let (magic, kind, third, fourth) = (word()?, word()?, word()?, word()?);
    let flags = fields.u64().map_err(|_| strange())?;
    match (magic, kind) {
        (MAGIC, KIND_OFFER) if !channels.is_empty() => {
            let session = Session { kernel_minor: third, flags };
            Ok(Greeting::Offer(Offer { session, serve_on_first: fourth != 0 }, channels))
        }
        (MAGIC, KIND_BUSY) => Ok(Greeting::Busy(third.cast_signed())),
        _ => Err(strange()),
    }
}

pub(super) fn send_command(socket: &OwnedFd, command: Command) -> io::Result<()> {
    let Command::Unmount = command;
    rustix::net::send(socket, &COMMAND_UNMOUNT.to_ne_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `None` when the server has closed its end or says something unknown.
pub(super) fn receive_command(socket: &OwnedFd) -> io::Result<Option<Command>> {
    let mut packet = [0; 4];
    let (length, _) = rustix::net::recv(socket, &mut packet, RecvFlags::empty())?;
    Ok((length == 4 && u32::from_ne_bytes(packet) == COMMAND_UNMOUNT).then_some(Command::Unmount))
}

pub(super) fn send_result(socket: &OwnedFd, result: &io::Result<()>) -> io::Result<()> {
    let number = match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    rustix::net::send(socket, &number.to_ne_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn receive_result(socket: &OwnedFd) -> io::Result<io::Result<()>> {
    let mut packet = [0; 4];
    let (length, _) = rustix::net::recv(socket, &mut packet, RecvFlags::empty())?;
    if length != 4 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(match i32::from_ne_bytes(packet) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    })
}
