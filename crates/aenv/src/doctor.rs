//! `aenv doctor`: what this host offers, what is used of it, and what it costs.

mod host;
mod node;

use std::process::ExitCode;

use serde::Serialize;

use crate::config::{Accelerator, Config};
use crate::output::{self, Format, Table};

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// There, and used.
    Ok,
    /// The better way is not there; another one is used instead.
    Fallback,
    /// Not there, and a node does not work without.
    Missing,
    /// Nothing that has to be done anything about.
    Info,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    /// What was found, and what is used.
    pub(crate) found: String,
    /// What to do about it, or what the fallback costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), advice: None }
    }
    fn info(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Info, found: found.into(), advice: None }
    }
    fn fallback(name: &'static str, found: impl Into<String>, cost: impl Into<String>) -> Self {
        Self { name, status: Status::Fallback, found: found.into(), advice: Some(cost.into()) }
    }
    fn missing(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, status: Status::Missing, found: found.into(), advice: Some(remedy.into()) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// Whether a node works here.
    usable: bool,
    checks: Vec<Check>,
}

impl Report {
    fn new(checks: Vec<Check>) -> Self {
        let usable = checks.iter().all(|check| check.status != Status::Missing);
        Self { version: env!("CARGO_PKG_VERSION"), usable, checks }
    }

    fn print(&self) -> anyhow::Result<()> {
        let mut table = Table::new(&["", "WHAT", "FOUND"]);
        for check in &self.checks {
            let mark = match check.status {
                Status::Ok => "ok",
                Status::Fallback => "fallback",
                Status::Missing => "MISSING",
                Status::Info => "",
            };
            table.row([mark.to_owned(), check.name.to_owned(), check.found.clone()]);
            if let Some(advice) = &check.advice {
                table.row([String::new(), String::new(), format!("→ {advice}")]);
            }
        }
        table.print()?;
        output::line("")?;
        output::line(if self.usable {
            "A node works on this machine."
        } else {
            "A node does not work on this machine until what is MISSING is there."
        })
    }
}

pub(crate) fn run(
    config: &Config,
    runtime: &tokio::runtime::Runtime,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let mut checks = host::checks(config);
    checks.extend(runtime.block_on(node::checks(config)));
    let report = Report::new(checks);
    match format {
        Format::Json => output::json(&report)?,
        Format::Table => report.print()?,
    }
    Ok(if report.usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The driver's view of the configuration.
pub(crate) fn qemu_config(config: &Config) -> vmm::qemu::QemuConfig {
    use vmm::qemu::AcceleratorChoice;
    vmm::qemu::QemuConfig {
        program: config.vmm.qemu.clone(),
        accelerator: match config.vmm.accelerator {
            Accelerator::Auto => AcceleratorChoice::Auto,
            Accelerator::Kvm => AcceleratorChoice::Kvm,
            Accelerator::Tcg => AcceleratorChoice::Tcg,
        },
        ..vmm::qemu::QemuConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_makes_a_host_unusable() {
        let usable = [Check::ok("a", "x"), Check::fallback("b", "x", "y"), Check::info("c", "x")];
        assert!(Report::new(usable.to_vec()).usable);
        let mut unusable = usable.to_vec();
        unusable.push(Check::missing("d", "x", "y"));
        assert!(!Report::new(unusable).usable);
    }

    #[test]
    fn the_json_names_status_and_advice() {
        let value = serde_json::to_value(Check::missing("nft", "no program", "install nftables")).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"name": "nft", "status": "missing", "found": "no program", "advice": "install nftables"})
        );
    }
}
