//! What a client asks of the broker, and its form on the socket: fields of a letter, a
//! length and bytes.

/// Largest request, in bytes: what Linux takes as arguments and environment together.
pub(super) const MAX_REQUEST: usize = 2 * 1024 * 1024 + 64 * 1024;
/// Fields of one request; each argument is one.
const MAX_FIELDS: usize = 65_536;

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    /// The command itself.
    #[default]
    Command,
    /// The target's shell, with the command as its `-c`.
    Shell,
    /// The same as after a login.
    Login,
}

/// One command to run as somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Request {
    /// Name, or `#` and a number; root when empty.
    pub(super) user: Vec<u8>,
    /// Name, or `#` and a number; the user's own when empty.
    pub(super) group: Vec<u8>,
    pub(super) mode: Mode,
    pub(super) directory: Vec<u8>,
    /// `NAME=VALUE`, set over what the target's environment starts with.
    pub(super) environment: Vec<Vec<u8>>,
    pub(super) command: Vec<Vec<u8>>,
    /// Columns and rows, when it gets a terminal of its own.
    pub(super) terminal: Option<(u16, u16)>,
    /// Which of output and error are the terminal.
    pub(super) on_terminal: [bool; 2],
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |letter: u8, bytes: &[u8]| {
            out.push(letter);
            out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend(bytes);
        };
        put(b'u', &self.user);
        put(b'g', &self.group);
        put(b'd', &self.directory);
        match self.mode {
            Mode::Command => {}
            Mode::Shell => put(b's', b""),
            Mode::Login => put(b'i', b""),
        }
        if let Some((cols, rows)) = self.terminal {
            let [a, b] = cols.to_be_bytes();
            let [c, d] = rows.to_be_bytes();
            let [output, error] = self.on_terminal.map(u8::from);
            put(b't', &[a, b, c, d, output, error]);
        }
        for variable in &self.environment {
            put(b'e', variable);
        }
        for argument in &self.command {
            put(b'a', argument);
        }
        out
    }

    /// None when the bytes are no request.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut request = Self::default();
        let mut fields = 0;
        while let Some((letter, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
            let (value, rest) = rest.split_at_checked(length)?;
            bytes = rest;
            fields += 1;
            if fields > MAX_FIELDS || value.contains(&0) && *letter != b't' {
                return None;
            }
            let value_owned = || value.to_vec();
            match letter {
                b'u' => request.user = value_owned(),
                b'g' => request.group = value_owned(),
                b'd' => request.directory = value_owned(),
                b's' => request.mode = Mode::Shell,
                b'i' => request.mode = Mode::Login,
                b't' => {
                    let [a, b, c, d, output, error] = *value.first_chunk::<6>()?;
                    request.terminal =
                        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])));
                    request.on_terminal = [output != 0, error != 0];
                }
                b'e' => request.environment.push(value_owned()),
                b'a' => request.command.push(value_owned()),
                _ => return None,
            }
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(1u8.., 0..20)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            user in text(), group in text(), directory in text(),
            environment in prop::collection::vec(text(), 0..4),
            command in prop::collection::vec(text(), 0..4),
            terminal in any::<Option<(u16, u16)>>(), mode in 0..3,
        ) {
            let request = Request {
                user, group, directory, environment, command, terminal,
                mode: [Mode::Command, Mode::Shell, Mode::Login][usize::try_from(mode).unwrap()],
                on_terminal: [terminal.is_some(), false],
            };
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }

        #[test]
        fn rubbish_is_refused_quietly(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::decode(&bytes);
        }
    }

    #[test]
    fn a_nul_would_cut_an_argument_short() {
        assert_eq!(Request::decode(b"a\0\0\0\x03x\0y"), None);
        assert_eq!(Request::decode(b"a\0\0\0\x09x"), None);
    }
}
