//! Reads files out of a Debian package without unpacking it to the host.
//!
//! Format: `deb(5)`. An `ar` archive of `debian-binary`, `control.tar.*` and `data.tar.*`; the last is a tar archive
//! compressed with xz (Debian 12) or zstd (Ubuntu).

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::AssetsError;

/// Bytes of an `ar` member header: name 16, mtime 12, uid 6, gid 6, mode 8, size 10 (decimal), end 2.
const AR_HEADER_BYTES: usize = 60;
/// More than any kernel package holds unpacked; stops a package that unpacks for ever.
const MAX_UNPACKED_BYTES: u64 = 4 << 30;
/// The largest single file that is read into memory.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Calls `wanted` with each regular file's path (no leading `./`) and hands those it picks to `take`, in archive order.
pub(crate) fn read_files(
    package: &Path,
    wanted: &dyn Fn(&str) -> bool,
    take: &mut dyn FnMut(String, Vec<u8>),
) -> Result<(), AssetsError> {
    let what = || format!("package {}", package.display());
    let read_error = |source| AssetsError::Io { context: format!("read {}", what()), source };
    let mut file = std::fs::File::open(package).map_err(read_error)?;
    let (name, size) = find_data_member(&mut file).map_err(read_error)?.ok_or_else(|| {
        AssetsError::format(
            what(),
            "it holds no data.tar member; the download may be cut short, remove it and try again",
        )
    })?;
    let member = BufReader::with_capacity(1 << 20, file.take(size));
    let unpacked: Box<dyn Read> = match name.as_str() {
        "data.tar.xz" => Box::new(lzma_rust2::XzReader::new(member, true)),
        "data.tar.zst" => Box::new(zstd::stream::read::Decoder::with_buffer(member).map_err(read_error)?),
        "data.tar" => Box::new(member),
        other => {
            return Err(AssetsError::format(what(), format!("its {other} is compressed in an unknown way")));
        }
    };
    let mut archive = tar::Archive::new(unpacked.take(MAX_UNPACKED_BYTES));
    for entry in archive.entries().map_err(read_error)? {
        let mut entry = entry.map_err(read_error)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        if !wanted(&path) {
            continue;
        }
        if entry.size() > MAX_FILE_BYTES {
            return Err(AssetsError::format(what(), format!("{path} is larger than {MAX_FILE_BYTES} bytes")));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(read_error)?;
        take(path, content);
    }
    Ok(())
}

/// Leaves the file at the start of the `data.tar*` member and returns its name and size.
fn find_data_member(file: &mut (impl Read + Seek)) -> std::io::Result<Option<(String, u64)>> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic)?;
    if &magic != b"!<arch>\n" {
        return Ok(None);
    }
    // Three members are usual; the bound is for files that are no packages.
    for _ in 0..16 {
        let mut header = [0; AR_HEADER_BYTES];
        if file.read_exact(&mut header).is_err() {
            return Ok(None);
        }
        let text = |range: std::ops::Range<usize>| String::from_utf8_lossy(&header[range]).trim().to_owned();
        let name = text(0..16).trim_end_matches('/').to_owned();
        let Ok(size) = text(48..58).parse::<u32>() else { return Ok(None) };
        if name.starts_with("data.tar") {
            return Ok(Some((name, u64::from(size))));
        }
        file.seek(SeekFrom::Current(i64::from(size.next_multiple_of(2))))?;
    }
    Ok(None)
}

/// Unpacks an xz file in memory, refusing more than [`MAX_FILE_BYTES`].
pub(crate) fn unpack_xz(what: &str, bytes: &[u8]) -> Result<Vec<u8>, AssetsError> {
    read_bounded(what, lzma_rust2::XzReader::new(bytes, true))
}

/// Unpacks the first zstd frame of some bytes in memory, ignoring what follows it and refusing more than [`MAX_FILE_BYTES`].
pub(crate) fn unpack_zstd_frame(what: &str, bytes: &[u8]) -> Result<Vec<u8>, AssetsError> {
    let failed = |error: std::io::Error| AssetsError::format(what, error.to_string());
    read_bounded(what, zstd::stream::read::Decoder::with_buffer(bytes).map_err(failed)?.single_frame())
}

fn read_bounded(what: &str, reader: impl Read) -> Result<Vec<u8>, AssetsError> {
    let mut content = Vec::new();
    reader
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(|error| AssetsError::format(what, error.to_string()))?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(AssetsError::format(what, format!("it unpacks to more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> String {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let package = directory.path().join("x.deb");
        std::fs::write(&package, bytes).expect("written");
        read_files(&package, &|_| true, &mut |_, _| {}).expect_err("refused").to_string()
    }

    #[test]
    fn files_that_are_no_packages_are_refused() {
        assert!(refusal(b"<html>not found</html>").contains("no data.tar member"));
        assert!(refusal(b"!<arch>\n").contains("no data.tar member"));
        assert!(refusal(b"").contains("read package"));
    }

    #[test]
    fn a_zstd_frame_followed_by_other_bytes_unpacks() {
        let mut bytes = zstd::encode_all(&b"kernel"[..], 3).expect("compressed");
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        assert_eq!(unpack_zstd_frame("test", &bytes).expect("unpacked"), b"kernel");
    }
}
