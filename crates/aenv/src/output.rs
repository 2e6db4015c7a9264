//! What a command prints: a table on a terminal, JSON for programs.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

impl Format {
    /// JSON when it was asked for, or when standard output is not a terminal.
    pub(crate) fn choose(json: bool) -> Self {
        if json || !std::io::stdout().is_terminal() { Self::Json } else { Self::Table }
    }
}

/// Prints one value as JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("write JSON")?;
    line(&text)
}

/// Prints a line. Unlike `println!` it fails, and does not panic, when nobody reads any more.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").context("write to standard output")
}

/// Says something beside the result, for people.
pub(crate) fn note(text: &str) {
    // When nobody reads standard error there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Columns of text under a head line.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&title| title.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| visible(&cell)).collect());
    }

    pub(crate) fn print(&self) -> anyhow::Result<()> {
        self.render().lines().try_for_each(line)
    }

    fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut written = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                written.push_str(cell);
                written.push_str(&" ".repeat(width - cell.chars().count() + 3));
            }
            text.push_str(written.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text of others (names, labels) must not drive the terminal.
fn visible(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(["abcdef".into(), "running".into()]);
        table.row(["é".into(), String::new()]);
        assert_eq!(table.render(), "ID       STATE\nabcdef   running\né\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new(&["NAME"]);
        table.row(["a\u{1b}[2Jb\n".into()]);
        assert_eq!(table.render(), "NAME\na\u{fffd}[2Jb\u{fffd}\n");
    }
}
