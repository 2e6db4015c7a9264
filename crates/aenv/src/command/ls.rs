//! `aenv ls`: the sandboxes of the node.

use std::time::SystemTime;

use protocol::api::{ListedSandbox, SandboxState, Timestamp};

use crate::client::Node;
use crate::output::{self, Format, Table};
use crate::units;

pub(crate) async fn run(node: &Node, format: Format) -> anyhow::Result<()> {
    let sandboxes = node.sandboxes().await?;
    match format {
        Format::Json => output::json(&sandboxes),
        Format::Table => table(&sandboxes, SystemTime::now().into()).print(),
    }
}

fn table(sandboxes: &[ListedSandbox], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "TEMPLATE", "STATE", "CPU", "MEMORY", "AGE", "ENDS IN", "LABELS"]);
    for sandbox in sandboxes {
        let state = match sandbox.state {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
        };
        let labels: Vec<String> =
            sandbox.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            sandbox.sandbox_id.clone(),
            sandbox.alias.clone().unwrap_or_else(|| sandbox.template_id.clone()),
            state.to_owned(),
            sandbox.cpu_count.to_string(),
            units::size(u64::from(sandbox.memory_mb) << 20),
            units::duration(now.saturating_since(sandbox.started_at)),
            units::duration(sandbox.end_at.saturating_since(now)),
            labels.join(" "),
        ]);
    }
    table
}
