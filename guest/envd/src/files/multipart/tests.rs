use proptest::prelude::*;

use super::*;

#[derive(Debug, Default)]
struct Collected {
    parts: Vec<(Part, Vec<u8>)>,
    ended: usize,
}

impl Sink for Collected {
    type Error = MalformedError;

    fn begin(&mut self, part: Part) -> Result<(), MalformedError> {
        self.parts.push((part, Vec::new()));
        Ok(())
    }

    fn content(&mut self, bytes: &[u8]) -> Result<(), MalformedError> {
        assert!(!bytes.is_empty() && self.ended + 1 == self.parts.len());
        self.parts.last_mut().unwrap().1.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), MalformedError> {
        self.ended += 1;
        Ok(())
    }
}

fn parse(body: &[u8], chunk_bytes: usize) -> Result<Collected, MalformedError> {
    let mut parser = Parser::for_content_type("multipart/form-data; boundary=XyZ").unwrap();
    let mut collected = Collected::default();
    for chunk in body.chunks(chunk_bytes) {
        parser.push(chunk, &mut collected)?;
    }
    parser.finish()?;
    Ok(collected)
}

fn part(filename: &str) -> Part {
    Part { name: "file".into(), filename: Some(filename.into()) }
}

#[test]
fn parts_are_found_however_the_body_is_cut() {
    let body = "ignored\r\n--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a 中.txt\"\r\n\
                Content-Type: text/plain\r\n\r\nline\r\n--Xy is no boundary\r\n\r\n--XyZ  \r\n\
                content-disposition: form-data; name=\"file\"; filename=b\r\n\r\n\r\n--XyZ--\r\nignored";
    for chunk_bytes in 1..body.len() {
        let collected = parse(body.as_bytes(), chunk_bytes).unwrap();
        assert_eq!(collected.parts.len(), 2);
        assert_eq!(collected.parts[0], (part("a 中.txt"), b"line\r\n--Xy is no boundary\r\n".to_vec()));
        assert_eq!(collected.parts[1], (part("b"), vec![]));
        assert_eq!(collected.ended, 2);
    }
}

#[test]
fn file_names_survive_every_way_of_writing_them() {
    for (header, expected) in [
        (r#"filename="a\"b""#, "a\"b"),
        (r#"filename="a%22b""#, "a\"b"),
        (r#"filename="C:\new\\x""#, r"C:\new\x"),
        (r#"filename="100%.txt""#, "100%.txt"),
        (r#"filename="a;b=c""#, "a;b=c"),
        (r#"filename="/tmp/dir/x""#, "/tmp/dir/x"),
        (r#"filename="plain"; filename*=UTF-8''%e4%b8%ad%20x"#, "中 x"),
        (r#"filename*=utf-8'en'x%zz; filename="plain""#, "x%zz"),
        (r#"flag; filename = token ; x=y"#, "token"),
    ] {
        let head = format!("Content-Disposition: form-data; name=file; {header}");
        let parsed = parse_head(head.as_bytes()).unwrap();
        assert_eq!(parsed, part(expected), "{header}");
    }
}

#[test]
fn damaged_bodies_are_refused() {
    let head = "--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
    for body in [
        String::new(),
        "no boundary".into(),
        "--XyZ\r\n".into(),
        format!("{head}content"),
        format!("{head}content\r\n--XyZ"),
        format!("{head}content\r\n--XyZgarbage\r\n\r\n"),
        format!("--XyZ\r\nX: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX)),
    ] {
        assert!(parse(body.as_bytes(), 1000).is_err(), "{body:.60}");
    }
    assert!(parse(b"--XyZ\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\n", 1000).is_err());
}

#[test]
fn the_boundary_may_be_quoted_and_must_be_there() {
    assert!(Parser::for_content_type("multipart/form-data; boundary=\"a b\"; charset=utf-8").is_some());
    for wrong in
        ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a\r\nb\""]
    {
        assert!(Parser::for_content_type(wrong).is_none(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_content_comes_out_as_it_went_in(
        contents in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), any::<u8>()], 0..200),
            0..4,
        ),
        chunk_bytes in 1usize..50,
    ) {
        let mut body = Vec::new();
        for content in &contents {
            body.extend_from_slice(b"--XyZ\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n");
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--XyZ--");
        prop_assume!(contents.iter().all(|content| memmem::find(content, b"\r\n--XyZ").is_none()));
        let collected = parse(&body, chunk_bytes).unwrap();
        prop_assert_eq!(collected.parts.into_iter().map(|part| part.1).collect::<Vec<_>>(), contents);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_are_not_hoarded(
        bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'a'), any::<u8>()], 0..3000),
        chunk_bytes in 1usize..100,
    ) {
        let mut parser = Parser::for_content_type("multipart/form-data; boundary=a").unwrap();
        let mut collected = Collected::default();
        for chunk in bytes.chunks(chunk_bytes) {
            if parser.push(chunk, &mut collected).is_err() {
                break;
            }
            prop_assert!(parser.buffer.len() <= HEAD_BYTES_MAX + chunk_bytes);
        }
    }

    #[test]
    fn arbitrary_heads_never_panic(head in "\\PC{0,100}", value in "[a-z=;\"\\\\*' %\u{e9}]{0,60}") {
        let _ = parse_head(head.as_bytes());
        let _ = parse_head(format!("Content-Disposition: {value}").as_bytes());
    }
}
