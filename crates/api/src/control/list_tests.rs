use super::*;

fn info(number: u8, metadata: &[(&str, &str)]) -> SandboxInfo {
    SandboxInfo {
        id: SandboxId::parse(&format!("aaaaaaaaaaaaaaaaaa{number:02}")).unwrap(),
        template_id: "tttttttttttttttttttt".to_owned(),
        template_name: "base".to_owned(),
        metadata: metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        vcpus: 1,
        memory_mib: 512,
        virtual_size_bytes: 1 << 30,
        access_token: "secret".to_owned(),
        envd_version: "0.6.13".to_owned(),
        started_at: Timestamp::from_unix_us(i64::from(number) * 1_000_000).unwrap(),
        end_at: Timestamp::from_unix_us(1_000_000_000).unwrap(),
    }
}

fn ids(page: &Page) -> Vec<u8> {
    page.items.iter().map(|info| info.id.as_str()[18..].parse().unwrap()).collect()
}

fn apply(query: &str, all: &[SandboxInfo]) -> Page {
    Filter::parse_v2(query).unwrap().apply(all.to_vec())
}

#[test]
fn newest_come_first_and_pages_join_without_gap_or_repetition() {
    let all: Vec<_> = (0..5).map(|number| info(number, &[])).collect();
    let mut seen = Vec::new();
    let mut query = "limit=2".to_owned();
    loop {
        let page = apply(&query, &all);
        seen.extend(ids(&page));
        match page.next_token {
            Some(token) => query = format!("limit=2&nextToken={token}"),
            None => break,
        }
    }
    assert_eq!(seen, [4, 3, 2, 1, 0]);
}

#[test]
fn a_page_goes_on_where_a_sandbox_was_that_is_gone() {
    let mut all: Vec<_> = (0..4).map(|number| info(number, &[])).collect();
    let first = apply("limit=2", &all);
    all.remove(2);
    let second = apply(&format!("limit=2&nextToken={}", first.next_token.unwrap()), &all);
    assert_eq!(ids(&second), [1, 0]);
}

#[test]
fn ascending_order_pages_too() {
    let all: Vec<_> = (0..3).map(|number| info(number, &[])).collect();
    let first = apply("limit=2&order=asc", &all);
    assert_eq!(ids(&first), [0, 1]);
    let second = apply(&format!("limit=2&order=asc&nextToken={}", first.next_token.unwrap()), &all);
    assert_eq!((ids(&second), second.next_token), (vec![2], None));
}

#[test]
fn a_full_last_page_has_no_next_token() {
    let all: Vec<_> = (0..2).map(|number| info(number, &[])).collect();
    assert_eq!(apply("limit=2", &all).next_token, None);
}

#[test]
fn metadata_is_decoded_as_the_clients_encode_it() {
    let all = [info(0, &[("a b", "c&d"), ("x", "y")]), info(1, &[("a b", "other")])];
    assert_eq!(ids(&apply("metadata=a%252520b%3Dc%252526d", &all)), [0]);
    assert_eq!(ids(&apply("metadata=x%3Dy%26a%252520b%3Dc%252526d", &all)), [0]);
    assert_eq!(ids(&apply("metadata=x%3Dz%26a%252520b%3Dc%252526d", &all)), [0u8; 0]);
    assert_eq!(ids(&apply("metadata=", &all)), [1, 0]);
}

#[test]
fn states_are_a_list() {
    let all = [info(0, &[])];
    for query in ["", "state=running", "state=running,paused", "state=paused&state=running"] {
        assert_eq!(ids(&apply(query, &all)), [0], "{query}");
    }
    assert_eq!(ids(&apply("state=paused", &all)), [0u8; 0]);
}

#[test]
fn started_after_is_inclusive() {
    let all: Vec<_> = (0..3).map(|number| info(number, &[])).collect();
    assert_eq!(ids(&apply("startedAfter=1970-01-01T00:00:01Z", &all)), [2, 1]);
    assert_eq!(ids(&apply("startedAfter=1970-01-01T00:00:01.000001Z", &all)), [2]);
}

#[test]
fn a_template_is_named_by_id_or_name_but_not_by_tag() {
    let all = [info(0, &[])];
    assert_eq!(ids(&apply("template=base", &all)), [0]);
    assert_eq!(ids(&apply("template=tttttttttttttttttttt", &all)), [0]);
    assert_eq!(ids(&apply("template=unknown", &all)), [0u8; 0]);
    assert!(Filter::parse_v2("template=base:default").is_err());
}

#[test]
fn nonsense_is_refused() {
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=-1",
        "nextToken=%00bad",
        "nextToken=1",
        "state=asleep",
        "order=up",
    ] {
        assert!(Filter::parse_v2(query).is_err(), "{query}");
    }
}

#[test]
fn unknown_parameters_are_ignored() {
    assert_eq!(Filter::parse_v2("future=1"), Filter::parse_v2(""));
}
