//! A layer's bytes on their way to the unpacker: read, hashed, decompressed, hashed again, in one pass and bounded memory.

use std::io::{self, BufRead, BufReader, Read};

use crate::ImageError;
use crate::digest::{Digest, Hasher};

/// Size of the reads from the source and of the buffers handed on.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;

/// How a layer is compressed. Found by its first bytes: media types are wrong often enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub(crate) fn detect(start: &[u8]) -> Self {
        if start.starts_with(&[0x1f, 0x8b]) {
            Self::Gzip
        } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
            // A skippable frame, as pzstd and some registries' tools put first.
            || (start.len() >= 4 && start[0] & 0xf0 == 0x50 && start[1..4] == [0x2a, 0x4d, 0x18])
        {
            Self::Zstd
        } else {
            Self::None
        }
    }
}

/// Why a layer's bytes could not be provided.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// The source failed.
    Source(io::Error),
    /// The compressed data is malformed.
    Damaged(String),
    /// More bytes than announced or allowed.
    TooLong { announced: u64 },
    /// The uncompressed layer is above the limit.
    UncompressedLimit { limit: u64 },
    /// The receiver went away.
    Closed,
}

/// What went through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamSummary {
    pub blob_digest: Digest,
    pub blob_bytes: u64,
    pub diff_digest: Digest,
    pub diff_bytes: u64,
}

/// A blob that hashes and counts itself while it is read.
#[derive(Debug)]
pub(crate) struct Blob<R> {
    source: R,
    hasher: Hasher,
    bytes: u64,
    announced: Option<u64>,
    too_long: bool,
    source_error: Option<io::Error>,
}

impl<R: Read> Blob<R> {
    fn new(source: R, hasher: Hasher, announced: Option<u64>) -> Self {
        Self { source, hasher, bytes: 0, announced, too_long: false, source_error: None }
    }
}

impl<R: Read> Read for Blob<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = match self.source.read(buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                // Decoders rewrite errors; this one must arrive as it is.
                let copy = io::Error::new(error.kind(), error.to_string());
                self.source_error = Some(error);
                return Err(copy);
            }
        };
        self.hasher.update(&buffer[..length]);
        self.bytes += length as u64;
        if self.announced.is_some_and(|announced| self.bytes > announced) {
            self.too_long = true;
            return Err(io::Error::other("more bytes than announced"));
        }
        Ok(length)
    }
}

/// A decompressor that gives its input back.
enum Decoder<R: BufRead> {
    None(R),
    // Layers may be several gzip members or zstd frames one after another.
    Gzip(Box<flate2::bufread::MultiGzDecoder<R>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, R>>),
}

impl<R: BufRead> Decoder<R> {
    fn new(compression: Compression, input: R) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Self::None(input),
            Compression::Gzip => Self::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(input))),
            Compression::Zstd => Self::Zstd(Box::new(zstd::stream::read::Decoder::with_buffer(input)?)),
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::None(input) => input.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
        }
    }

    fn into_input(self) -> R {
        match self {
            Self::None(input) => input,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
        }
    }
}

/// Reads a blob to its end and hands its uncompressed bytes to `sink` in chunks. `compressed_progress` is told the
/// blob bytes read so far.
///
/// After a failure that is not the source's the rest of the blob is still read (at most `DRAIN_BYTES`), so that a
/// damaged transfer is reported as a wrong digest and not as whatever it made the decoder stumble over; the digest
/// then comes with the error.
pub(crate) fn pump<R: Read>(
    source: R,
    expected: Option<&Digest>,
    announced: Option<u64>,
    limit: u64,
    mut sink: impl FnMut(Vec<u8>) -> Result<Vec<u8>, ()>,
    mut progress: impl FnMut(u64),
) -> Result<StreamSummary, (StreamError, Option<(Digest, u64)>)> {
    /// Enough to tell a damaged transfer from a bad layer.
    const DRAIN_BYTES: u64 = 256 << 20;

    let hasher = expected.map_or_else(Hasher::sha256, Digest::hasher);
    let blob = Blob::new(source, hasher, announced);
    let mut input = BufReader::with_capacity(CHUNK_BYTES, blob);
    let failed = |error, input: BufReader<Blob<R>>| {
        let mut blob = input.into_inner();
        if let Some(error) = blob.source_error.take() {
            return (StreamError::Source(error), None);
        }
        if blob.too_long {
            return (StreamError::TooLong { announced: announced.unwrap_or_default() }, None);
        }
        let whole = announced.is_some_and(|announced| announced - blob.bytes <= DRAIN_BYTES)
            && io::copy(&mut blob, &mut io::sink()).is_ok();
        let seen = whole.then(|| (blob.hasher.finish(), blob.bytes));
        (error, seen)
    };

    let compression = match peek(&mut input) {
        Ok(start) => Compression::detect(start),
        Err(error) => return Err(failed(StreamError::Source(error), input)),
    };
    // Without compression both digests are of the same bytes; hash them once.
    let mut diff_hasher = Hasher::sha256();
    let hash_twice =
        compression != Compression::None || expected.is_some_and(|digest| digest.algorithm() != "sha256");
    let mut decoder = match Decoder::new(compression, input) {
        Ok(decoder) => decoder,
        Err(error) => return Err((StreamError::Damaged(error.to_string()), None)),
    };
    let mut diff_bytes = 0_u64;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        buffer.resize(CHUNK_BYTES, 0);
        let length = match read_full(&mut decoder, &mut buffer) {
            Ok(length) => length,
            Err(error) => return Err(failed(StreamError::Damaged(error.to_string()), decoder.into_input())),
        };
        if length == 0 {
            break;
        }
        buffer.truncate(length);
        if hash_twice {
            diff_hasher.update(&buffer);
        }
        diff_bytes += length as u64;
        if diff_bytes > limit {
            return Err(failed(StreamError::UncompressedLimit { limit }, decoder.into_input()));
        }
        buffer = match sink(buffer) {
            Ok(buffer) => buffer,
            Err(()) => return Err(failed(StreamError::Closed, decoder.into_input())),
        };
        if let Decoder::None(input) = &decoder {
            progress(input.get_ref().bytes);
        } else {
            progress(decoder.blob_bytes());
        }
    }
    let mut input = decoder.into_input();
    // A zstd decoder may stop at the end of the last frame before it has seen the end of the stream.
    let rest = match input.fill_buf() {
        Ok(rest) => rest.len(),
        Err(error) => return Err(failed(StreamError::Source(error), input)),
    };
    if rest > 0 {
        return Err(failed(StreamError::Damaged("data follows its compressed stream".to_owned()), input));
    }
    let blob = input.into_inner();
    let blob_digest = blob.hasher.finish();
    let diff_digest = if hash_twice { diff_hasher.finish() } else { blob_digest.clone() };
    Ok(StreamSummary { blob_digest, blob_bytes: blob.bytes, diff_digest, diff_bytes })
}

impl<R: Read> Decoder<BufReader<Blob<R>>> {
    fn blob_bytes(&self) -> u64 {
        match self {
            Self::None(input) => input.get_ref().bytes,
            Self::Gzip(decoder) => decoder.get_ref().get_ref().bytes,
            Self::Zstd(decoder) => decoder.get_ref().get_ref().bytes,
        }
    }
}

/// The first bytes without taking them; a reader may return fewer than asked for.
fn peek(input: &mut impl BufRead) -> io::Result<&[u8]> {
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    input.fill_buf()
}

fn read_full<R: BufRead>(decoder: &mut Decoder<R>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match decoder.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl StreamError {
    /// The error of reading a local archive as a whole.
    pub(crate) fn into_image_error(self, image: &str, path: &std::path::Path) -> ImageError {
        match self {
            Self::Source(error) => ImageError::io("reading", path)(error),
            Self::Damaged(reason) => ImageError::Damaged { what: image.to_owned(), reason },
            Self::TooLong { announced } => ImageError::SizeMismatch {
                what: image.to_owned(),
                expected: announced,
                actual: announced + 1,
            },
            Self::UncompressedLimit { limit } => ImageError::LimitExceeded {
                what: format!("the uncompressed size of {image}"),
                limit: format!("{limit} bytes"),
            },
            Self::Closed => ImageError::Cancelled,
        }
    }
}
