//! `aenv auth`: what a client needs to reach this node.

use crate::client::read_key;
use crate::config::Config;
use crate::output;

pub(crate) fn run(config: &Config, json: bool) -> anyhow::Result<()> {
    let key = read_key(&config.api_key_path())?;
    let url = config.url();
    if json {
        return output::json(&serde_json::json!({"apiKey": key, "apiUrl": url, "sandboxUrl": url}));
    }
    // Lines a shell can evaluate: eval "$(aenv auth)".
    output::line(&format!("# API key: {key}"))?;
    output::line(&format!("export E2B_API_KEY={key}"))?;
    output::line(&format!("export E2B_API_URL={url}"))?;
    output::line(&format!("export E2B_SANDBOX_URL={url}"))
}
