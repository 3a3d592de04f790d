//! Standard output of the commands. Names, metadata and messages may come from a hostile
//! guest or client: nothing of them reaches a terminal as a control character.

use std::io::{self, Write as _};

use super::Failure;

/// The text with each control character replaced, line breaks and tabs included.
pub(crate) fn clean(text: &str) -> String {
    // Beside the controls: the characters that turn the direction of writing.
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| {
            if c.is_control() || turns(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// Prints text as it is. A reader that went away (`| head`) is no failure: it has what it
/// wanted.
///
/// # Errors
/// When standard output cannot be written for another reason.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::from_error("writing to standard output", &e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor_or_turns_the_text() {
        assert_eq!(
            clean("a\x1b[2Jb\n\tc\u{9b}d\u{202e}e"),
            "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\u{fffd}d\u{fffd}e"
        );
        assert_eq!(clean("ü☃ plain"), "ü☃ plain");
    }
}
