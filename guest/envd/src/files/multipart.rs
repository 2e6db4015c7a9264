//! `multipart/form-data` (RFC 7578), cut while it arrives.
//!
//! The parser holds back at most a delimiter's length of content, and a bounded head of a part; content goes on at
//! once.

use memchr::memmem;

/// Longest boundary that is accepted; the standard's limit is 70.
const BOUNDARY_BYTES_MAX: usize = 200;
/// Longest head of a part: a name is at most 4 KiB, escaped at most three times that.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// White space that may follow a delimiter.
const PADDING_BYTES_MAX: usize = 128;

/// Takes the parts.
pub(super) trait Sink {
    /// Why a part is refused; ends the parsing.
    type Error: From<MalformedError>;

    fn begin(&mut self, part: Part) -> Result<(), Self::Error>;
    fn content(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
    fn end(&mut self) -> Result<(), Self::Error>;
}

/// What the head of a part says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

/// The body is not what it says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedError(pub(super) &'static str);

/// The parser.
#[derive(Debug)]
pub(super) struct Parser {
    /// Line break, two dashes, boundary.
    delimiter: memmem::Finder<'static>,
    buffer: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// Right behind a delimiter.
    Delimiter,
    Head,
    Content,
    /// Behind the last delimiter; what follows means nothing.
    Epilogue,
}

impl Parser {
    /// A parser for the boundary in a content type; `None` when there is no usable one.
    pub(super) fn for_content_type(content_type: &str) -> Option<Self> {
        let boundary = parameters(content_type).find(|(name, _)| name.eq_ignore_ascii_case("boundary"))?.1;
        if boundary.is_empty() || boundary.len() > BOUNDARY_BYTES_MAX || boundary.contains(['\r', '\n']) {
            return None;
        }
        let delimiter = memmem::Finder::new(format!("\r\n--{boundary}").as_bytes()).into_owned();
        // The first delimiter may open the body; then the line break before it is the one we put here.
        Some(Self { delimiter, buffer: b"\r\n".to_vec(), state: State::Preamble })
    }

    /// Takes the next bytes.
    pub(super) fn push<S: Sink>(&mut self, bytes: &[u8], sink: &mut S) -> Result<(), S::Error> {
        if self.state == State::Epilogue {
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        let mut consumed = 0;
        let result = loop {
            match self.step(consumed, sink) {
                Ok(Some(used)) => consumed += used,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.buffer.drain(..consumed.min(self.buffer.len()));
        result
    }

    /// Checks that the body was whole.
    pub(super) fn finish(&self) -> Result<(), MalformedError> {
        if self.state == State::Epilogue {
            Ok(())
        } else {
            Err(MalformedError("the body ends before its last boundary"))
        }
    }

    /// One step on the bytes from `from`: how many it used, or `None` when more must arrive first.
    fn step<S: Sink>(&mut self, from: usize, sink: &mut S) -> Result<Option<usize>, S::Error> {
        let rest = self.buffer.get(from..).unwrap_or_default();
        match self.state {
            State::Epilogue => Ok(None),
            State::Preamble | State::Content => {
                let in_part = self.state == State::Content;
                let delimiter_bytes = self.delimiter.needle().len();
                let Some(index) = self.delimiter.find(rest) else {
                    // The end of what is here may be the beginning of a delimiter.
                    let safe = rest.len().saturating_sub(delimiter_bytes - 1);
                    if safe == 0 {
                        return Ok(None);
                    }
                    if in_part {
                        sink.content(&rest[..safe])?;
                    }
                    return Ok(Some(safe));
                };
                if in_part {
                    if index > 0 {
                        sink.content(&rest[..index])?;
                    }
                    sink.end()?;
                }
                self.state = State::Delimiter;
                Ok(Some(index + delimiter_bytes))
            }
            State::Delimiter => {
                if rest.starts_with(b"--") {
                    self.state = State::Epilogue;
                    return Ok(Some(rest.len()));
                }
                let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                match &rest[padding..] {
                    [b'\r', b'\n', ..] => {
                        self.state = State::Head;
                        // The line break stays: it ends an empty head.
                        Ok(Some(padding))
                    }
                    [] | [b'\r'] | [b'-'] if padding <= PADDING_BYTES_MAX => Ok(None),
                    _ => {
                        Err(MalformedError("a boundary is followed by something else than a line break")
                            .into())
                    }
                }
            }
            State::Head => {
                let window = &rest[..rest.len().min(HEAD_BYTES_MAX)];
                match memmem::find(window, b"\r\n\r\n") {
                    Some(end) => {
                        sink.begin(parse_head(&window[..end])?)?;
                        self.state = State::Content;
                        Ok(Some(end + 4))
                    }
                    None if window.len() == HEAD_BYTES_MAX => {
                        Err(MalformedError("the head of a part is longer than 16 KiB").into())
                    }
                    None => Ok(None),
                }
            }
        }
    }
}

/// The head's `Content-Disposition`.
fn parse_head(head: &[u8]) -> Result<Part, MalformedError> {
    let head = std::str::from_utf8(head).map_err(|_| MalformedError("the head of a part is not UTF-8"))?;
    let mut part = Part::default();
    for line in head.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else { continue };
        if !name.trim().eq_ignore_ascii_case("content-disposition") {
            continue;
        }
        for (name, value) in parameters(value) {
            match name.to_ascii_lowercase().as_str() {
                "name" => part.name = value,
                // RFC 5987 says that the extended form wins.
                "filename*" => part.filename = decode_extended(&value).or(part.filename),
                "filename" if part.filename.is_none() => part.filename = Some(unescape_form(&value)),
                _ => {}
            }
        }
    }
    Ok(part)
}

/// The parameters of a header value: `type; name=token; name="quoted"`. In quotes, only a quote and a backslash can be
/// escaped: clients send other backslashes as they are.
fn parameters(value: &str) -> impl Iterator<Item = (String, String)> + '_ {
    let mut rest = value.split_once(';').map_or("", |(_, rest)| rest);
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start_matches([' ', '\t', ';']);
            let (name, after) = rest.split_once('=')?;
            if let Some((_, next)) = name.split_once(';') {
                // A parameter without a value.
                rest = &rest[rest.len() - next.len() - 1 - after.len()..];
                continue;
            }
            let name = name.trim().to_owned();
            let after = after.trim_start_matches([' ', '\t']);
            let text = match after.strip_prefix('"') {
                Some(quoted) => {
                    let (text, used) = unquote(quoted);
                    rest = &quoted[used..];
                    text
                }
                None => {
                    let end = after.find(';').unwrap_or(after.len());
                    rest = &after[end..];
                    after[..end].trim_end().to_owned()
                }
            };
            return Some((name, text));
        }
    })
}

/// The text up to the closing quote, and the bytes it took with that.
fn unquote(quoted: &str) -> (String, usize) {
    let mut text = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (text, index + 1),
            '\\' => match characters.next_if(|(_, next)| matches!(next, '"' | '\\')) {
                Some((_, escaped)) => text.push(escaped),
                None => text.push('\\'),
            },
            _ => text.push(character),
        }
    }
    (text, quoted.len())
}

/// Browsers and their like write these three characters, and only these, as percent escapes.
fn unescape_form(text: &str) -> String {
    text.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// `UTF-8''a%20b`
fn decode_extended(value: &str) -> Option<String> {
    let mut fields = value.splitn(3, '\'');
    if !fields.next()?.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let text = fields.nth(1)?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%'
            && let Some((digits, after)) = after.split_at_checked(2)
            && let Ok(digits) = std::str::from_utf8(digits)
            && let Ok(value) = u8::from_str_radix(digits, 16)
        {
            bytes.push(value);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[path = "multipart/tests.rs"]
mod tests;
