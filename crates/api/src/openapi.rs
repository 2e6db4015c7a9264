//! The OpenAPI 3.1 document of the control plane.

use http::header;

/// Written by hand; a test compares it with the routes.
const DOCUMENT: &str = include_str!("../openapi.json");

pub(crate) async fn document() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
#[path = "openapi_tests.rs"]
mod tests;
