//! What file requests ask of the rest of the agent: tokens and users.

use base64::Engine as _;
use hearth_model::secret::Secret;
use http::HeaderMap;
use http::header;

use crate::filesystem::path::Caller;

pub(crate) trait Gate {
    /// What callers must show; none: nothing.
    fn token(&self) -> Option<Secret>;

    /// The user a request acts for, the default one without a name.
    ///
    /// # Errors
    /// The text for a client, when there is no such user.
    fn caller(&self, name: Option<&str>) -> Result<Caller, String>;
}

/// The user of a request: by name where it has one of its own, else by
/// `Authorization: Basic`, else the default.
///
/// # Errors
/// The text for a client that is not let in.
pub(crate) fn caller(
    gate: &impl Gate,
    headers: &HeaderMap,
    name: Option<&str>,
) -> Result<Caller, String> {
    let basic = match name {
        Some(_) => None,
        None => basic_user(headers)?,
    };
    gate.caller(name.or(basic.as_deref()))
}

/// The name in `Authorization: Basic base64("name:")`; other schemes are not for us.
fn basic_user(headers: &HeaderMap) -> Result<Option<String>, String> {
    let Some(encoded) = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
        .map(|(_, encoded)| encoded.trim())
    else {
        return Ok(None);
    };
    base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| Some(text.split_once(':')?.0.to_owned()))
        .map(|user| Some(user).filter(|user| !user.is_empty()))
        .ok_or_else(|| "authorization header is not valid Basic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_users() {
        let check = |value: &str, expected: Result<Option<&str>, ()>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            let found = basic_user(&headers).map_err(drop);
            assert_eq!(found, expected.map(|user| user.map(str::to_owned)), "{value}");
        };
        check("Basic cm9vdDo=", Ok(Some("root")));
        check("basic dXNlcjpwYXNz", Ok(Some("user")));
        check("Basic Og==", Ok(None));
        check("Bearer x", Ok(None));
        check("Basic !!!", Err(()));
        check("Basic cm9vdA==", Err(()));
        check("Basic /w==", Err(()));
        assert_eq!(basic_user(&HeaderMap::new()), Ok(None));
    }
}
