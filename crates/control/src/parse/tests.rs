//! Tables of bodies and what is said of them.

use proptest::prelude::*;

use super::create::{Version, create};
use super::*;

fn v2(body: &str) -> Result<CreateRequest, String> {
    Fields::read(body.as_bytes())
        .and_then(|fields| create(&fields, Version::V2, None))
        .map_err(|fault| fault.to_string())
}

fn refused(body: &str, words: &[&str]) {
    let text = v2(body).expect_err(body);
    for word in words {
        assert!(text.contains(word), "{body} -> {text}, without {word}");
    }
}

#[test]
fn what_the_published_clients_send_is_accepted() {
    for body in [
        // Python 2.63 with no options.
        r#"{"templateID":"base","metadata":{},"envVars":{}}"#,
        // Old clients, v1 body.
        r#"{"templateID":"base","metadata":{},"timeout":300,"envVars":{},"secure":true,"allow_internet_access":true,"autoPause":false}"#,
        // Every way to say no.
        r#"{"templateID":"base","autoPause":false,"autoPauseMemory":true,"autoResume":{"enabled":false},
            "network":{},"mcp":null,"iam":{"tokens":{}},"volumeMounts":[],"metadata":null,"forceUpload":1}"#,
    ] {
        assert!(v2(body).is_ok(), "{body}: {:?}", v2(body));
    }
}

#[test]
fn defaults_differ_by_route() {
    let fields = Fields::read(br#"{"templateID":"base"}"#).expect("an object");
    let timeout = |v| create(&fields, v, None).expect("valid").timeout_s;
    assert_eq!((timeout(Version::V1), timeout(Version::V2)), (15, 300));
}

#[test]
fn later_options_are_refused_by_name() {
    for (option, name) in [
        (r#""autoPause":true"#, "autoPause"),
        (r#""autoPauseMemory":false"#, "autoPauseMemory"),
        (r#""autoResume":{"enabled":true}"#, "autoResume"),
        (r#""network":{"allowOut":["1.1.1.1"]}"#, "network"),
        (r#""network":{"allowPublicTraffic":false}"#, "network"),
        (r#""mcp":{"exa":{"apiKey":"x"}}"#, "mcp"),
        (r#""mcp":{"duckduckgo":{}}"#, "mcp"),
        (
            r#""iam":{"tokens":{"a":{"audience":"b","tokenType":"JWT-SVID"}}}"#,
            "iam",
        ),
        (
            r#""volumeMounts":[{"name":"a","path":"/b"}]"#,
            "volumeMounts",
        ),
    ] {
        let body = format!(r#"{{"templateID":"base",{option}}}"#);
        refused(&body, &[name, "not supported"]);
    }
}

#[test]
fn faults_name_field_limit_and_value() {
    let big_value = "v".repeat(40_000);
    let big_key = "k".repeat(300);
    let many: Vec<String> = (0..300).map(|n| format!(r#""k{n}":"v""#)).collect();
    for (body, words) in [
        (r#"{}"#.to_owned(), vec!["templateID is required"]),
        (
            r#"{"templateID":null}"#.into(),
            vec!["templateID is required"],
        ),
        (
            r#"{"templateID":7}"#.into(),
            vec!["templateID", "a string", "7"],
        ),
        (r#"{"templateID":"../x"}"#.into(), vec!["templateID"]),
        (r#"{"templateID":"b\u0000"}"#.into(), vec!["templateID"]),
        (
            r#"{"templateID":"base","timeout":"5"}"#.into(),
            vec!["timeout", "whole number", "\"5\""],
        ),
        (
            r#"{"templateID":"base","timeout":1.5}"#.into(),
            vec!["timeout", "1.5"],
        ),
        (
            r#"{"templateID":"base","timeout":0}"#.into(),
            vec!["Timeout must be greater than 0"],
        ),
        (
            r#"{"templateID":"base","timeout":-1}"#.into(),
            vec!["Timeout must be greater than 0"],
        ),
        (
            r#"{"templateID":"base","timeout":31536001}"#.into(),
            vec!["Timeout cannot be greater than 8760 hours"],
        ),
        (
            r#"{"templateID":"base","timeout":18446744073709551615}"#.into(),
            vec!["Timeout cannot be greater"],
        ),
        (
            r#"{"templateID":"base","allow_internet_access":"no"}"#.into(),
            vec!["allow_internet_access", "no"],
        ),
        (
            r#"{"templateID":"base","metadata":[]}"#.into(),
            vec!["metadata", "an object"],
        ),
        (
            r#"{"templateID":"base","metadata":{"a":1}}"#.into(),
            vec!["metadata.a", "a string", "1"],
        ),
        (
            r#"{"templateID":"base","metadata":{"a":"\u0000"}}"#.into(),
            vec!["metadata.a", "NUL"],
        ),
        (
            r#"{"templateID":"base","envVars":{"":"x"}}"#.into(),
            vec!["envVars", "empty"],
        ),
        (
            r#"{"templateID":"base","envVars":{"A=B":"x"}}"#.into(),
            vec!["envVars", "A=B"],
        ),
        (
            r#"{"templateID":"base","autoPause":"yes"}"#.into(),
            vec!["autoPause", "yes"],
        ),
        (
            format!(r#"{{"templateID":"base","metadata":{{"a":"{big_value}"}}}}"#),
            vec!["metadata.a", "40000", "32768"],
        ),
        (
            format!(r#"{{"templateID":"base","envVars":{{"{big_key}":"x"}}}}"#),
            vec!["envVars", "300", "256"],
        ),
        (
            format!(
                r#"{{"templateID":"base","metadata":{{{}}}}}"#,
                many.join(",")
            ),
            vec!["metadata", "300", "256"],
        ),
        (
            format!(r#"{{"templateID":"{}"}}"#, "a".repeat(65_536)),
            vec!["templateID", "65536", "128"],
        ),
        ("[]".into(), vec!["JSON object", "an array"]),
        ("".into(), vec!["malformed JSON"]),
        (r#"{"templateID":"ba"#.into(), vec!["malformed JSON"]),
        ("{\"a\":".repeat(200), vec!["malformed JSON", "recursion"]),
        (
            "--boundary\r\nContent-Disposition: form-data".into(),
            vec!["malformed JSON"],
        ),
    ] {
        refused(&body, &words);
    }
}

#[test]
fn a_total_of_many_small_entries_is_bounded() {
    let entries: Vec<String> = (0..200)
        .map(|n| format!(r#""k{n}":"{}""#, "v".repeat(2000)))
        .collect();
    let body = format!(
        r#"{{"templateID":"base","metadata":{{{}}}}}"#,
        entries.join(",")
    );
    refused(&body, &["metadata", "in all", "262144"]);
}

#[test]
fn a_team_limit_is_named_and_never_cuts() {
    assert_eq!(timeout_within(3600, Some(1)), Ok(3600));
    let fault = timeout_within(3601, Some(1)).expect_err("above");
    assert_eq!(fault.to_string(), "Timeout cannot be greater than 1 hour");
    let fault = timeout_within(90_000, Some(24)).expect_err("above");
    assert_eq!(fault.to_string(), "Timeout cannot be greater than 24 hours");
}

#[test]
fn refreshes_have_bounds() {
    let read = |body: &str| refresh_duration(&Fields::read(body.as_bytes()).expect("an object"));
    assert_eq!(read("{}"), Ok(15));
    assert_eq!(read(r#"{"duration":3600}"#), Ok(3600));
    assert!(read(r#"{"duration":3601}"#).is_err());
    assert!(read(r#"{"duration":-1}"#).is_err());
}

#[test]
fn the_clis_body_is_read_back() {
    let sent = hearth_wire::e2b::NewSandbox {
        template_id: "base".into(),
        timeout: Some(60),
        metadata: [("a".to_owned(), "b".to_owned())].into(),
        env_vars: [("C".to_owned(), "d".to_owned())].into(),
        allow_internet_access: Some(false),
    };
    let body = serde_json::to_string(&sent).expect("JSON");
    let read = v2(&body).expect("valid");
    assert_eq!(read.timeout_s, 60);
    assert_eq!(read.metadata, sent.metadata);
    assert_eq!(read.env, sent.env_vars);
    assert_eq!(read.internet(), hearth_model::sandbox::Internet::Closed);
}

#[test]
fn two_spellings_of_one_request_compare_equal() {
    let text = |body: &str| {
        Fields::read(body.as_bytes())
            .expect("an object")
            .canonical()
    };
    assert_eq!(
        text(r#"{"a":1,"b":"x"}"#),
        text("{ \"b\": \"x\",\n \"a\": 1 }")
    );
    assert_ne!(text(r#"{"a":1}"#), text(r#"{"a":2}"#));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(fields) = Fields::read(&body) {
            let _ = create(&fields, Version::V1, None);
        }
    }

    #[test]
    fn any_timeout_is_kept_or_refused(seconds: i64) {
        let body = format!(r#"{{"templateID":"base","timeout":{seconds}}}"#);
        match v2(&body) {
            Ok(request) => prop_assert_eq!(i64::try_from(request.timeout_s), Ok(seconds)),
            Err(text) => prop_assert!(text.starts_with("Timeout"), "{}", text),
        }
    }
}
