//! The HTTP front door: E2B endpoints, node endpoints and the proxy into sandboxes.
