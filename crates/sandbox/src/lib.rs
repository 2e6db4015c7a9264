//! Sandbox lifecycle: one actor per sandbox, durable records, templates, adoption after a restart.
