//! `aenv template`: what sandboxes are made from.

use std::time::SystemTime;

use anyhow::{anyhow, bail};
use protocol::api::{Template, Timestamp};

use crate::client::{Node, is_not_found};
use crate::output::{self, Format, Table};
use crate::units;

pub(crate) async fn list(node: &Node, format: Format) -> anyhow::Result<()> {
    let templates = node.templates().await?;
    match format {
        Format::Json => output::json(&templates),
        Format::Table => table(&templates, SystemTime::now().into()).print(),
    }
}

fn table(templates: &[Template], now: Timestamp) -> Table {
    let mut table = Table::new(&["NAME", "ID", "LAYERS", "DISK", "CPU", "MEMORY", "PULLED", "SOURCE"]);
    for template in templates {
        table.row([
            template.name.clone(),
            template.template_id.clone(),
            template.layer_count.to_string(),
            units::size(template.virtual_size_bytes),
            template.cpu_count.to_string(),
            units::size(u64::from(template.memory_mb) << 20),
            format!("{} ago", units::duration(now.saturating_since(template.updated_at))),
            template.source.clone(),
        ]);
    }
    table
}

pub(crate) async fn remove(node: &Node, names: Vec<String>) -> anyhow::Result<()> {
    let mut failed = 0;
    let total = names.len();
    for name in names {
        let outcome = node.remove_template(&name).await.map_err(|error| {
            if is_not_found(&error) {
                return anyhow!("there is no template {name}; `aenv template ls` lists those there are");
            }
            error.context(format!("template {name}"))
        });
        match outcome {
            Ok(()) => output::line(&name)?,
            Err(error) if total == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                output::note(&format!("aenv: {error:#}"));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {total} templates were not removed");
    }
    Ok(())
}
