//! How clients name a template (`e2b.md` A.8.1): an id, or `[namespace/]alias[:tag]`.
//! Pure.

use crate::ports::Template;

/// Longest name accepted, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// The tag a name without one means.
pub(crate) const DEFAULT_TAG: &str = "default";

/// A name as given, parsed and lower-cased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateName {
    pub(crate) namespace: Option<String>,
    /// An alias or an id.
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

/// Why a text names no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    #[error("is empty")]
    Empty,
    #[error("has {0} bytes, the limit is {MAX_NAME}")]
    TooLong(usize),
    #[error("must be [namespace/]name[:tag], the name of [a-z0-9-_] and the tag of [a-z0-9-_.]")]
    Malformed,
}

impl TemplateName {
    pub(crate) fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > MAX_NAME {
            return Err(NameError::TooLong(text.len()));
        }
        let lower = text.to_ascii_lowercase();
        let (path, tag) = match lower.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (lower.as_str(), None),
        };
        let (namespace, name) = match path.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, path),
        };
        let good = is_word(name, "-_")
            && namespace.is_none_or(|n| is_word(n, "-_"))
            && tag.is_none_or(|t| is_word(t, "-_."));
        if !good {
            return Err(NameError::Malformed);
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            tag: tag.map(str::to_owned),
        })
    }

    /// Finds the template among those a node has. These belong to no team, so a name with a
    /// namespace finds none of them.
    pub(crate) fn find<'a>(&self, templates: &'a [Template]) -> Option<&'a Template> {
        if self.namespace.is_some() {
            return None;
        }
        templates.iter().find(|template| {
            let named = template.id.as_str() == self.name || template.aliases.contains(&self.name);
            let tagged = self
                .tag
                .as_ref()
                .is_none_or(|tag| tag == DEFAULT_TAG || *tag == template.build_id);
            named && tagged
        })
    }
}

fn is_word(text: &str, extra: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || extra.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::id::TemplateId;
    use hearth_model::sandbox::Size;
    use proptest::prelude::*;

    fn base() -> Vec<Template> {
        vec![Template {
            id: TemplateId::parse("rki5dems9wqfm4r03t7g").expect("an id"),
            aliases: vec!["base".into()],
            build_id: "11111111-1111-4111-8111-111111111111".into(),
            size: Size {
                vcpu: 2,
                memory_mib: 512,
                disk_mib: 1024,
            },
            envd_version: "0.6.20".into(),
            created_ms: 0,
            updated_ms: 0,
        }]
    }

    #[test]
    fn finds_by_id_alias_and_tag() {
        let templates = base();
        for (text, found) in [
            ("base", true),
            ("BASE", true),
            ("base:default", true),
            ("base:11111111-1111-4111-8111-111111111111", true),
            ("rki5dems9wqfm4r03t7g", true),
            ("base:v2", false),
            ("other", false),
            ("default/base", false),
        ] {
            let name = TemplateName::parse(text).expect(text);
            assert_eq!(name.find(&templates).is_some(), found, "{text}");
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(65_536);
        for text in [
            "",
            "/",
            ":",
            "a/",
            "/a",
            "a:",
            "../../etc/passwd",
            "a/b/c",
            "a:b:c",
            "a\0",
            "a b",
            "\u{430}",
            "%2e%2e",
            &long,
        ] {
            assert!(TemplateName::parse(text).is_err(), "{text:.40}");
        }
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in ".*") {
            let _ = TemplateName::parse(&text).is_ok();
        }
    }
}
