//! What there is of a node.

use std::time::Duration;

use super::Check;
use crate::client;
use crate::config::Config;

const TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn checks(config: &Config) -> Vec<Check> {
    vec![assets(config), storage(config).await, http(config).await]
}

fn assets(config: &Config) -> Check {
    match assets::Assets::open(&config.assets_directory()) {
        Ok(assets) => Check::ok("assets", format!("kernel {}", assets.manifest.kernel_release)),
        Err(error) => Check::missing("assets", error.to_string(), "make them: aenv setup"),
    }
}

async fn storage(config: &Config) -> Check {
    let socket = config.runtime_dir.join("storaged.sock");
    let asked = async {
        let client = storaged::Client::connect(&socket).await.ok()?;
        client.status().await.ok()
    };
    match tokio::time::timeout(TIMEOUT, asked).await.ok().flatten() {
        Some(status) => Check::ok(
            "storage daemon",
            format!(
                "process {}, front end {}, {} devices, mount {}",
                status.process_id, status.front_end, status.device_count, status.mount_point
            ),
        ),
        None => Check::info("storage daemon", "not running; `aenv serve` starts it"),
    }
}

async fn http(config: &Config) -> Check {
    let address = config.listen;
    if is_ours(config).await {
        return Check::ok("node", format!("answers at {}", config.url()));
    }
    match tokio::net::TcpListener::bind(address).await {
        Ok(_) => Check::info("node", format!("not running; {address} is free for it")),
        Err(error) => Check::missing(
            "node",
            format!("not running, and {address} cannot be used: {error}"),
            "stop what uses that port, or configure another one: listen",
        ),
    }
}

async fn is_ours(config: &Config) -> bool {
    let ask = async {
        let url = client::parse_url(&format!("{}/health", config.url())).ok()?;
        let response = client::http_client(&[&url]).ok()?.get(url).send().await.ok()?;
        Some(response.status().is_success())
    };
    tokio::time::timeout(TIMEOUT, ask).await.ok().flatten().unwrap_or(false)
}
