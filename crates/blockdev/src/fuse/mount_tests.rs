//! The handshake with kernels of different age, and the mount table.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test")]

use super::*;

fn init_request(minor: u32, flags: u32, flags2: Option<u32>) -> Vec<u8> {
    let mut message = vec![0; 40 + 16 + if flags2.is_some() { 48 } else { 0 }];
    let length = message.len() as u32;
    let mut fields = Encoder::new(&mut message);
    fields.u32(length).u32(opcode::INIT).u64(2).zeros(24).u32(7).u32(minor).u32(131_072).u32(flags);
    if let Some(flags2) = flags2 {
        fields.u32(flags2);
    }
    message
}

fn shake(message: &[u8]) -> io::Result<([u8; 64], Session)> {
    let (header, body) = Header::parse(message).unwrap();
    negotiate(header, body, WANTED).unwrap()
}

#[test]
fn a_new_kernel_is_asked_for_everything_we_use_and_nothing_else() {
    let (reply, session) = shake(&init_request(45, u32::MAX, Some(u32::MAX))).unwrap();
    assert_eq!(session, Session { kernel_minor: 45, flags: WANTED });
    assert!(session.resends());
    let word = |at: usize| u32::from_ne_bytes(reply[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4), word(8)), (7, abi::MINOR, 131_072));
    assert_eq!(u64::from(word(12)) | u64::from(word(32)) << 32, WANTED);
    assert_eq!(word(20), 1 << 20);
    assert_eq!(u16::from_ne_bytes([reply[28], reply[29]]), 256);
}

#[test]
fn an_old_kernel_without_second_flags_gets_none() {
    let (_, session) = shake(&init_request(31, !(1 << 30), None)).unwrap();
    assert_eq!(session.flags >> 32, 0);
    assert!(!session.resends());
}

#[test]
fn a_kernel_that_is_too_old_is_refused_with_a_reason() {
    let error = shake(&init_request(30, 0, None)).unwrap_err();
    assert!(error.to_string().contains("7.30"), "{error}");
}

#[test]
fn a_cut_handshake_is_malformed() {
    let message = init_request(45, u32::MAX, Some(0));
    for length in 40..60 {
        let mut cut = message[..length].to_vec();
        cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        let (header, body) = Header::parse(&cut).unwrap();
        assert!(negotiate(header, body, WANTED).is_err(), "{length}");
    }
}

#[test]
fn escapes_of_the_mount_table_are_undone() {
    assert_eq!(unescape(r"/a\040b\134c\011"), "/a b\\c\t");
    assert_eq!(unescape(r"/plain\x"), r"/plain\x");
    assert_eq!(unescape(r"/end\04"), r"/end\04");
}
