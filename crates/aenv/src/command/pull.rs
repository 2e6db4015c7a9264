//! `aenv pull`: an image becomes a template.

mod credentials;
mod progress;

use std::io::Read;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use bytes::BytesMut;
use protocol::api::{PullTemplate, PullTemplateEvent, Template};
use reqwest::Response;

use crate::cli::PullArguments;
use crate::client::Node;
use crate::output::{self, Format};
use crate::units;
use image::{Credentials, Source};
use progress::Progress;

/// An event is under 1 KiB; a template with an image's environment can be larger.
const MAX_LINE_BYTES: usize = 8 << 20;
/// Longest silence while a layer is unpacked and converted.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(600);
/// Forms of a reference that name a file on the node.
const LOCAL_FORMS: [&str; 3] = ["oci:", "docker-archive:", "rootfs:"];

pub(crate) async fn run(node: &Node, arguments: PullArguments, format: Format) -> anyhow::Result<()> {
    let source_text = absolute(&arguments.reference)?;
    let source: Source = source_text.parse()?;
    let credentials = match (&arguments.username, &source) {
        (Some(username), _) => Some(Credentials { username: username.clone(), password: read_password()? }),
        (None, Source::Registry(reference)) => {
            credentials::find(reference, |name| std::env::var_os(name)).await?
        }
        (None, _) => None,
    };
    let (username, password) = credentials.map(|found| (found.username, found.password)).unzip();
    let pull = PullTemplate {
        source: source_text,
        name: arguments.name.clone(),
        virtual_size_bytes: arguments.size,
        cpu_count: arguments.vcpus,
        memory_mb: arguments.memory,
        username,
        password,
    };
    let failed = || format!("pull {}", arguments.reference);
    let response = node.pull(&pull).await.with_context(failed)?;
    let template = follow(response).await.with_context(failed)?;
    match format {
        Format::Json => output::json(&template),
        Format::Table => output::line(&format!(
            "{} is ready: {} layers, {} disk (template {})",
            template.name,
            template.layer_count,
            units::size(template.virtual_size_bytes),
            template.template_id
        )),
    }
}

async fn follow(mut response: Response) -> anyhow::Result<Template> {
    let mut progress = Progress::new();
    let mut buffer = BytesMut::new();
    loop {
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(&line).context("the node's answer cannot be read")? {
                PullTemplateEvent::Progress(step) => progress.show(&step),
                PullTemplateEvent::Template(template) => return Ok(*template),
                PullTemplateEvent::Error(error) => bail!(error.message),
            }
        }
        if buffer.len() > MAX_LINE_BYTES {
            bail!("the node's answer cannot be read: a line does not end");
        }
        let chunk = tokio::time::timeout(SILENCE, response.chunk())
            .await
            .map_err(|_| anyhow!("the node has been silent for {} s", SILENCE.as_secs()))?
            .context(
                "the connection to the node broke; what was converted so far is kept for the next try",
            )?;
        buffer.extend_from_slice(&chunk.context("the node ended the answer before the pull was done")?);
    }
}

/// The node has another working directory: paths become absolute here.
fn absolute(reference: &str) -> anyhow::Result<String> {
    for form in LOCAL_FORMS {
        if let Some(path) = reference.strip_prefix(form) {
            let path = std::path::absolute(Path::new(path)).with_context(|| format!("resolve {path:?}"))?;
            let path = path.to_str().context("the path is not UTF-8")?;
            return Ok(format!("{form}{path}"));
        }
    }
    Ok(reference.to_owned())
}

fn read_password() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .take(64 * 1024)
        .read_to_string(&mut text)
        .context("read the password from standard input")?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        bail!("--username needs the password on standard input");
    }
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_absolute_and_a_registry_reference_stays() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute("oci:a/b").unwrap(), format!("oci:{}/a/b", here.display()));
        assert_eq!(absolute("rootfs:/x.tar").unwrap(), "rootfs:/x.tar");
        assert_eq!(absolute("127.0.0.1:5000/a:b").unwrap(), "127.0.0.1:5000/a:b");
    }
}
