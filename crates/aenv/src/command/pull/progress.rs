//! Where a pull stands: bars on a terminal, one line for each step elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use protocol::api::PullProgress;

use crate::output;
use crate::units;

/// Most bars on the screen; the lines of further layers come without.
const MAX_BARS: usize = 64;

/// Shows progress on standard error.
#[derive(Debug)]
pub(super) enum Progress {
    Bars { screen: MultiProgress, bars: BTreeMap<(u32, String), ProgressBar> },
    Lines { seen: BTreeSet<(String, u32)> },
}

impl Progress {
    pub(super) fn new() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars { screen: MultiProgress::new(), bars: BTreeMap::new() }
        } else {
            Self::Lines { seen: BTreeSet::new() }
        }
    }

    pub(super) fn show(&mut self, step: &PullProgress) {
        match self {
            Self::Lines { seen } => {
                if seen.insert((step.phase.clone(), step.layer_index)) {
                    output::note(&label(step));
                }
            }
            Self::Bars { screen, bars } => {
                let is_image = step.layer_digest.is_empty();
                // One line for the image, whatever its steps are numbered.
                let key = (if is_image { 0 } else { step.layer_index }, step.layer_digest.clone());
                if !bars.contains_key(&key) && bars.len() < MAX_BARS {
                    bars.insert(key.clone(), screen.add(bar(is_image)));
                }
                let Some(bar) = bars.get(&key) else { return };
                bar.set_message(label(step));
                bar.set_length(step.total_bytes.max(step.done_bytes));
                bar.set_position(step.done_bytes);
                if matches!(step.phase.as_str(), "reuse" | "finish") {
                    bar.finish();
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Bars { bars, .. } = self {
            bars.values().filter(|bar| !bar.is_finished()).for_each(ProgressBar::abandon);
        }
    }
}

/// The image as a whole has steps, but no size.
fn bar(is_image: bool) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = if is_image { "{msg}" } else { "{msg:44} {bar:30} {bytes:>10} / {total_bytes:10}" };
    // A template without unknown keys is always accepted; without it the bar has indicatif's own look.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━━ "));
    }
    bar
}

/// `layer 2 of 5 sha256:0123456789ab: fetch, 12 MiB`
fn label(step: &PullProgress) -> String {
    if step.layer_digest.is_empty() {
        return format!("image: {}", step.phase);
    }
    let digest = step.layer_digest.rsplit(':').next().unwrap_or_default();
    let short: String = digest.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    let size =
        if step.total_bytes > 0 { format!(", {}", units::size(step.total_bytes)) } else { String::new() };
    format!("layer {} of {} {short}: {}{size}", step.layer_index + 1, step.layer_count, step.phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_in_one_line() {
        let step = PullProgress {
            phase: "fetch".into(),
            layer_digest: "sha256:0123456789abcdef".into(),
            layer_index: 1,
            layer_count: 5,
            done_bytes: 0,
            total_bytes: 12 << 20,
        };
        assert_eq!(label(&step), "layer 2 of 5 0123456789ab: fetch, 12 MiB");
        assert_eq!(
            label(&PullProgress { phase: "resolve".into(), ..PullProgress::default() }),
            "image: resolve"
        );
    }
}
