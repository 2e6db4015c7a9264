use std::io::{BufReader, Cursor, Read};

use proptest::prelude::*;

use super::*;

/// A ustar header with a right checksum.
fn header(kind: u8, name: &[u8], size: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000001\0");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

fn seal(block: &mut [u8; BLOCK_BYTES]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn archive(members: &[(u8, Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, name, data) in members {
        bytes.extend_from_slice(&header(*kind, name, data.len() as u64));
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    bytes.resize(bytes.len() + 2 * BLOCK_BYTES, 0);
    bytes
}

type NamedData = Vec<(Vec<u8>, Vec<u8>)>;

/// Everything the reader makes of a stream: members with their data, and whether it ended well.
fn read(input: impl Read, buffer_bytes: usize) -> (NamedData, bool) {
    let mut reader = TarReader::new(BufReader::with_capacity(buffer_bytes, input), Limits::default());
    let mut found = Vec::new();
    loop {
        match reader.next_member() {
            Ok(Some(member)) => {
                let mut data = Vec::new();
                loop {
                    let Ok(chunk) = reader.data() else { return (found, false) };
                    if chunk.is_empty() {
                        break;
                    }
                    data.extend_from_slice(chunk);
                    let length = chunk.len();
                    reader.consume(length);
                }
                assert_eq!(data.len() as u64, member.stored_bytes);
                found.push((member.path, data));
            }
            Ok(None) => return (found, true),
            Err(_) => return (found, false),
        }
    }
}

/// Records that reach every branch of the pax and sparse readers.
fn pax_records() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(vec![
        "path",
        "linkpath",
        "size",
        "uid",
        "gid",
        "mtime",
        "atime",
        "comment",
        "SCHILY.xattr.user.a",
        "GNU.sparse.map",
        "GNU.sparse.major",
        "GNU.sparse.minor",
        "GNU.sparse.realsize",
        "GNU.sparse.size",
        "GNU.sparse.offset",
        "GNU.sparse.numbytes",
        "GNU.sparse.numblocks",
        "GNU.sparse.name",
    ]);
    let value = prop::sample::select(vec![
        "",
        "0",
        "1",
        "512",
        "0,512",
        "0,1,2,3",
        "-1",
        "9223372036854775807",
        "18446744073709551616",
        "1.5",
        "a/b",
        "x",
    ]);
    prop::collection::vec((key, value), 0..8).prop_map(|records| {
        let record = |(key, value): &(&str, &str)| {
            let rest = key.len() + value.len() + 3;
            let digits = (rest + rest.to_string().len()).to_string().len();
            format!("{} {key}={value}\n", rest + digits).into_bytes()
        };
        records.iter().flat_map(record).collect()
    })
}

fn members() -> impl Strategy<Value = Vec<(u8, Vec<u8>, Vec<u8>)>> {
    let plain = (
        prop::sample::select(b"0\x00123456752gLKSVZ".to_vec()),
        prop::collection::vec(1_u8..255, 1..100),
        prop::collection::vec(any::<u8>(), 0..1500),
    );
    let pax = pax_records().prop_map(|records| (b'x', b"pax".to_vec(), records));
    prop::collection::vec(prop_oneof![3 => plain, 2 => pax], 0..8)
}

proptest! {
    #[test]
    fn members_come_back_as_they_were_written(
        members in prop::collection::vec(
            (Just(b'0'), prop::collection::vec(1_u8..255, 1..100), prop::collection::vec(any::<u8>(), 0..2000)), 0..10),
        buffer_bytes in 1_usize..4096,
    ) {
        let expected: Vec<_> = members.iter().map(|(_, name, data)| (name.clone(), data.clone())).collect();
        prop_assert_eq!(read(Cursor::new(archive(&members)), buffer_bytes), (expected, true));
    }

    #[test]
    fn odd_archives_are_read_or_refused_without_panic_and_alike_in_any_chunks(
        members in members(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        buffer_bytes in 1_usize..2048,
    ) {
        let mut bytes = archive(&members);
        for (index, value, reseal) in changes {
            let position = index.index(bytes.len());
            bytes[position] = value;
            // Half of the changes pass the checksum.
            let start = position / BLOCK_BYTES * BLOCK_BYTES;
            if reseal && let Ok(block) = <&mut [u8; BLOCK_BYTES]>::try_from(&mut bytes[start..start + BLOCK_BYTES]) {
                seal(block);
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let whole = read(Cursor::new(&bytes), 1 << 20);
        prop_assert_eq!(read(Cursor::new(&bytes), buffer_bytes), whole);
    }

    #[test]
    fn any_bytes_are_read_or_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        read(Cursor::new(bytes), 512);
    }
}
