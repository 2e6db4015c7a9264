//! Which keys there are, and how the environment overrides them.

use anyhow::{Context, bail};
use toml::{Table, Value};

/// How the text of a variable becomes a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    Number,
    /// Separated by commas.
    List,
}

/// Every key as (table, or "" for none; name; kind).
pub(super) const KEYS: &[(&str, &str, Kind)] = &[
    ("", "listen", Kind::Text),
    ("", "domain", Kind::Text),
    ("", "data_dir", Kind::Text),
    ("", "runtime_dir", Kind::Text),
    ("", "api_key_file", Kind::Text),
    ("sandbox", "default_vcpus", Kind::Number),
    ("sandbox", "default_memory_mib", Kind::Number),
    ("sandbox", "default_timeout_s", Kind::Number),
    ("sandbox", "limit", Kind::Number),
    ("storage", "virtual_size_gib", Kind::Number),
    ("registry", "insecure", Kind::List),
    ("registry", "docker_config", Kind::Text),
    ("network", "slot_range", Kind::Text),
    ("network", "dns", Kind::List),
    ("network", "name_prefix", Kind::Text),
    ("network", "denied_networks", Kind::List),
    ("vmm", "qemu", Kind::Text),
    ("vmm", "accelerator", Kind::Text),
    ("assets", "guest_programs", Kind::Text),
    ("assets", "kernel_package_url", Kind::Text),
    ("assets", "kernel_package_sha256", Kind::Text),
    ("assets", "busybox_package_url", Kind::Text),
    ("assets", "busybox_package_sha256", Kind::Text),
];

/// The variable that overrides a key.
pub(super) fn variable(table: &str, name: &str) -> String {
    let table = if table.is_empty() { String::new() } else { format!("{table}_") };
    format!("AENV_{table}{name}").to_ascii_uppercase()
}

/// Replaces what the environment names.
pub(super) fn override_from(
    mut table: Table,
    environment: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Table> {
    for (table_name, name, kind) in KEYS {
        let variable = variable(table_name, name);
        let Some(text) = environment(&variable) else { continue };
        let value = match kind {
            Kind::Text => Value::String(text),
            Kind::Number => Value::Integer(
                text.parse()
                    .with_context(|| format!("environment {variable}={text:?} is not a whole number"))?,
            ),
            Kind::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
            }
        };
        let target = if table_name.is_empty() {
            &mut table
        } else {
            match table.entry(*table_name).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(inner) => inner,
                _ => bail!("configuration: [{table_name}] is not a table"),
            }
        };
        target.insert((*name).to_owned(), value);
    }
    Ok(table)
}
