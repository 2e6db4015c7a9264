//! `aenv rm`: kill sandboxes.

use anyhow::{anyhow, bail};
use futures_util::StreamExt;

use crate::cli::RmArguments;
use crate::client::{Node, is_not_found};
use crate::output;

/// Sandboxes killed at the same time.
const PARALLEL: usize = 8;

pub(crate) async fn run(node: &Node, arguments: RmArguments) -> anyhow::Result<()> {
    let ids = if arguments.all {
        node.sandboxes().await?.into_iter().map(|sandbox| sandbox.sandbox_id).collect()
    } else {
        arguments.ids
    };
    let total = ids.len();
    let mut outcomes = futures_util::stream::iter(ids)
        .map(|id| async move {
            let outcome = node.kill_sandbox(&id).await.map_err(|error| {
                if is_not_found(&error) {
                    return anyhow!("there is no sandbox {id}");
                }
                error.context(format!("sandbox {id}"))
            });
            (id, outcome)
        })
        .buffered(PARALLEL);
    let mut failed = 0;
    while let Some((id, outcome)) = outcomes.next().await {
        match outcome {
            Ok(()) => output::line(&id)?,
            Err(error) if total == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                output::note(&format!("aenv: {error:#}"));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {total} sandboxes were not killed");
    }
    Ok(())
}
