//! Tables: drawn for a terminal, tab-separated lines without a header for a pipe.

use std::io::IsTerminal as _;

use super::Failure;
use super::out::{clean, print};

/// Prints rows below a header.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn show<const N: usize>(
    header: [&str; N],
    rows: Vec<[String; N]>,
) -> Result<(), Failure> {
    let rows = rows.into_iter().map(|row| row.map(|cell| clean(&cell)));
    if std::io::stdout().is_terminal() {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header(header);
        table.add_rows(rows);
        return print(&format!("{}\n", table.trim_fmt()));
    }
    print(
        &rows
            .map(|row| format!("{}\n", row.join("\t")))
            .collect::<String>(),
    )
}
