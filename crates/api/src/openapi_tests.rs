use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// Every operation of the document as (path, method, operation).
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            operations.push((path.clone(), method.clone(), operation));
        }
    }
    operations
}

fn resolve<'a>(document: &'a Value, reference: &str) -> Option<&'a Value> {
    document.pointer(reference.strip_prefix('#')?)
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(target) if name == "$ref" => drop(found.insert(target.clone())),
                    other => references(other, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn the_document_and_the_routes_are_the_same() {
    let document = document();
    let documented: BTreeSet<(String, String)> =
        operations(&document).into_iter().map(|(path, method, _)| (method, path)).collect();
    let served: BTreeSet<(String, String)> = crate::routes::control()
        .listed
        .into_iter()
        .map(|(method, path)| (method.to_owned(), path.to_owned()))
        .collect();
    assert_eq!(documented, served);
}

#[test]
fn it_is_openapi_3_1_with_the_members_that_requires() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    for member in ["title", "version"] {
        assert!(document["info"][member].is_string());
    }
    for (path, method, operation) in operations(&document) {
        let responses = operation["responses"].as_object().unwrap();
        assert!(!responses.is_empty(), "{method} {path}");
        for (status, response) in responses {
            assert!(status.parse::<u16>().is_ok(), "{method} {path}: {status}");
            let response = match response["$ref"].as_str() {
                Some(reference) => resolve(&document, reference).unwrap(),
                None => response,
            };
            assert!(response["description"].is_string(), "{method} {path}: {status}");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        assert!(resolve(&document, &reference).is_some(), "{reference}");
    }
}

#[test]
fn every_parameter_of_a_path_is_declared() {
    let document = document();
    for (path, method, operation) in operations(&document) {
        let in_path: BTreeSet<&str> =
            path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}')).collect();
        let empty = Vec::new();
        let parameters = operation["parameters"].as_array().unwrap_or(&empty);
        let declared: BTreeSet<&str> = parameters
            .iter()
            .map(|parameter| match parameter["$ref"].as_str() {
                Some(reference) => resolve(&document, reference).unwrap(),
                None => parameter,
            })
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(in_path, declared, "{method} {path}");
    }
}

#[test]
fn only_health_and_the_document_need_no_key() {
    let document = document();
    let open: Vec<String> = operations(&document)
        .into_iter()
        .filter(|(_, _, operation)| operation["security"].as_array().is_some_and(Vec::is_empty))
        .map(|(path, _, _)| path)
        .collect();
    assert_eq!(open, ["/health", "/openapi.json"]);
}
