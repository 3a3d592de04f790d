//! Tables: drawn for a terminal, bare columns for a pipe.

use std::io::IsTerminal as _;

/// Prints rows below a header.
pub(crate) fn print<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) {
    let mut table = comfy_table::Table::new();
    if std::io::stdout().is_terminal() {
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    } else {
        table.load_preset(comfy_table::presets::NOTHING);
    }
    table.set_header(header);
    table.add_rows(rows);
    println!("{}", table.trim_fmt());
}
