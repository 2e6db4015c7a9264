//! Every offset and length against a plain byte array.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test")]

use std::sync::Arc;

use super::Slot;
use crate::{Image, MemoryImage};

const SIZE: usize = 8 * 512;

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * 31 + seed * 17) % 251) as u8 + 1).collect()
}

fn filled() -> (Slot, Vec<u8>) {
    let image = MemoryImage::new(SIZE);
    let content = pattern(0, SIZE);
    image.write_at(&content, 0).unwrap();
    (Slot::new(Arc::new(image)), content)
}

fn content_of(slot: &Slot) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    assert_eq!(slot.read(&mut bytes, 0).unwrap(), SIZE);
    bytes
}

const OFFSETS: [usize; 9] = [0, 1, 511, 512, 513, 1023, 1024, 2000, 3 * 512];
const LENGTHS: [usize; 10] = [1, 2, 10, 511, 512, 513, 1024, 1025, 1500, 2048];

#[test]
fn unaligned_reads_give_the_bytes_asked_for() {
    let (slot, content) = filled();
    for offset in OFFSETS {
        for length in LENGTHS {
            let mut bytes = vec![0; length];
            assert_eq!(slot.read(&mut bytes, offset as u64).unwrap(), length);
            assert_eq!(bytes, content[offset..offset + length], "{offset}+{length}");
        }
    }
}

#[test]
fn unaligned_writes_change_only_their_bytes() {
    for offset in OFFSETS {
        for length in LENGTHS {
            let (slot, mut content) = filled();
            let data = pattern(length, length);
            assert_eq!(slot.write(&data, offset as u64).unwrap(), length);
            content[offset..offset + length].copy_from_slice(&data);
            assert_eq!(content_of(&slot), content, "{offset}+{length}");
        }
    }
}

#[test]
fn unaligned_zeroing_changes_only_its_bytes() {
    for offset in OFFSETS {
        for length in LENGTHS {
            let (slot, mut content) = filled();
            slot.zero(offset as u64, length as u64).unwrap();
            content[offset..offset + length].fill(0);
            assert_eq!(content_of(&slot), content, "{offset}+{length}");
        }
    }
}

#[test]
fn the_end_of_the_device_cuts_requests_short() {
    let (slot, mut content) = filled();
    let mut bytes = [0; 100];
    assert_eq!(slot.read(&mut bytes, SIZE as u64 - 30).unwrap(), 30);
    assert_eq!(slot.read(&mut bytes, SIZE as u64).unwrap(), 0);
    assert_eq!(slot.read(&mut bytes, u64::MAX).unwrap(), 0);
    assert_eq!(slot.write(&[7; 100], SIZE as u64 - 30).unwrap(), 30);
    content[SIZE - 30..].fill(7);
    for offset in [SIZE as u64, u64::MAX] {
        let error = slot.write(&[7; 100], offset).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    }
    slot.zero(SIZE as u64 - 10, u64::MAX).unwrap();
    slot.zero(u64::MAX, u64::MAX).unwrap();
    content[SIZE - 10..].fill(0);
    assert_eq!(content_of(&slot), content);
}

#[test]
fn neighbouring_unaligned_writers_do_not_lose_each_others_bytes() {
    let slot = Arc::new(Slot::new(Arc::new(MemoryImage::new(512))));
    std::thread::scope(|scope| {
        for writer in 0..8_u64 {
            let slot = Arc::clone(&slot);
            scope.spawn(move || {
                for byte in (writer * 64)..(writer * 64 + 64) {
                    slot.write(&[writer as u8 + 1], byte).unwrap();
                }
            });
        }
    });
    let mut bytes = [0; 512];
    slot.read(&mut bytes, 0).unwrap();
    for (position, byte) in bytes.iter().enumerate() {
        assert_eq!(usize::from(*byte), position / 64 + 1);
    }
}

#[test]
fn a_closed_slot_answers_with_an_input_output_error() {
    let (slot, _) = filled();
    assert!(slot.close().is_some());
    assert!(slot.close().is_none());
    assert!(slot.swap(Arc::new(MemoryImage::new(SIZE))).is_none());
    let code = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(code(slot.read(&mut [0; 512], 0).map(drop)), Some(libc::EIO));
    assert_eq!(code(slot.write(&[0; 512], 0).map(drop)), Some(libc::EIO));
    assert_eq!(code(slot.write(&[0; 5], 0).map(drop)), Some(libc::EIO));
    assert_eq!(code(slot.zero(0, 512)), Some(libc::EIO));
    assert_eq!(code(slot.flush()), Some(libc::EIO));
}
