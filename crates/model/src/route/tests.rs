//! Odd hosts, headers, targets and paths.

use super::*;
use crate::signature::sign;
use proptest::prelude::*;

const ID: &str = "i0123456789abcdefghijklmno";

fn host(text: &str) -> Result<Route, RouteError> {
    route(&Head {
        method: "GET",
        path: "/",
        hosts: vec![text.as_bytes()],
        ..Head::default()
    })
}

fn sandbox(port: u16) -> Result<Route, RouteError> {
    Ok(Route::Sandbox(Target {
        sandbox: SandboxId::parse(ID).expect("valid"),
        port,
    }))
}

#[test]
fn hosts_that_name_a_sandbox() {
    for text in [
        format!("8080-{ID}.localhost"),
        format!("8080-{ID}.localhost:3000"),
        format!("8080-{ID}.localhost.:3000"),
        format!("8080-{ID}.localhost:"),
        format!("8080-{ID}"),
        format!("8080-{ID}-6532622b.example.test"),
        format!("8080-{}.LOCALHOST", ID.to_uppercase()),
        format!("08080-{ID}.localhost"),
    ] {
        assert_eq!(host(&text), sandbox(8080), "{text}");
    }
}

#[test]
fn hosts_that_name_none() {
    for text in [
        "localhost",
        "localhost:3000",
        "127.0.0.1:3000",
        "[::1]:3000",
        "[::1]",
        "api.example.test",
        "my-host.example.test",
        "a8080-i0123456789abcdefghijklmno.localhost",
        "-i0123456789abcdefghijklmno.localhost",
        "example.8080-i0123456789abcdefghijklmno",
        "under_score.test",
    ] {
        assert_eq!(host(text), Ok(Route::Control), "{text}");
    }
}

#[test]
fn broken_hosts_are_refused() {
    let long = "a".repeat(65_536);
    let cases = [
        String::new(),
        ".".into(),
        "a..b".into(),
        "localhost..".into(),
        "::1".into(),
        "[::1".into(),
        "[::1]x".into(),
        "[fe80::1%eth0]".into(),
        "localhost:0".into(),
        "localhost:65536".into(),
        "localhost:+80".into(),
        "localhost:80:80".into(),
        "user@localhost".into(),
        format!("user:pw@8080-{ID}.localhost"),
        "local host".into(),
        "localhost/x".into(),
        "loc\0alhost".into(),
        "localho\u{455}t".into(),
        "%6cocalhost".into(),
        long,
    ];
    for text in &cases {
        assert!(
            matches!(host(text), Err(RouteError::Host(_))),
            "{text:.40}: {:?}",
            host(text)
        );
    }
    for (text, fault) in [
        (format!("0-{ID}.localhost"), RouteError::Port),
        (format!("65536-{ID}.localhost"), RouteError::Port),
        (format!("000080-{ID}.localhost"), RouteError::Port),
        ("8080-nosuchid.localhost".into(), RouteError::Sandbox),
    ] {
        assert_eq!(host(&text), Err(fault), "{text}");
    }
}

#[test]
fn several_or_no_host_headers() {
    let head = |hosts: Vec<&'static [u8]>, authority, host_optional| {
        route(&Head {
            method: "GET",
            path: "/",
            hosts,
            authority,
            host_optional,
            ..Head::default()
        })
    };
    assert!(head(vec![b"localhost", b"localhost"], None, false).is_err());
    assert!(head(vec![], None, false).is_err());
    assert_eq!(head(vec![], None, true), Ok(Route::Control));
    assert_eq!(
        head(
            vec![],
            Some("80-i0123456789abcdefghijklmno.localhost"),
            false
        ),
        sandbox(80)
    );
    assert_eq!(
        head(vec![b"LocalHost"], Some("localhost"), false),
        Ok(Route::Control)
    );
    assert!(head(vec![b"localhost"], Some("other"), false).is_err());
    assert!(head(vec![b"localhost"], Some("user@localhost"), false).is_err());
    assert!(head(vec![b"localhos\xff"], None, false).is_err());
}

#[test]
fn headers_win_and_go_together() {
    let with = |ids: Vec<&'static [u8]>, ports: Vec<&'static [u8]>, host: &'static str| {
        route(&Head {
            method: "GET",
            path: "/",
            hosts: vec![host.as_bytes()],
            sandbox_ids: ids,
            sandbox_ports: ports,
            ..Head::default()
        })
    };
    let id: &[u8] = b"i0123456789abcdefghijklmno";
    let old: &[u8] = b"i0123456789abcdefghijklmno-6532622b";
    assert_eq!(with(vec![id], vec![b"49983"], "localhost"), sandbox(49983));
    assert_eq!(with(vec![old], vec![b"49983"], "[::1]:1"), sandbox(49983));
    assert_eq!(
        with(vec![id], vec![b"1"], "8080-izzzzzzzzzzzzzzzzzzzzzzzzz.x"),
        sandbox(1)
    );
    assert_eq!(
        with(vec![id], vec![], "localhost"),
        Err(RouteError::MissingPort)
    );
    assert_eq!(
        with(vec![], vec![b"1"], "localhost"),
        Err(RouteError::MissingId)
    );
    assert!(matches!(
        with(vec![id, id], vec![b"1"], "localhost"),
        Err(RouteError::Repeated(_))
    ));
    assert!(matches!(
        with(vec![id], vec![b"1", b"2"], "localhost"),
        Err(RouteError::Repeated(_))
    ));
    for port in ["", "0", "-1", "+1", " 1", "1 ", "65536", "1e3", "0x50"] {
        assert_eq!(
            with(vec![id], vec![port.as_bytes()], "localhost"),
            Err(RouteError::Port),
            "{port:?}"
        );
    }
    for bad in [
        "",
        "../../x",
        "I0123456789ABCDEFGHIJKLMNO",
        "i0123456789abcdefghijklmn%6f",
        "\u{456}0123456789abcdefghijklmno",
    ] {
        assert_eq!(
            with(vec![bad.as_bytes()], vec![b"1"], "localhost"),
            Err(RouteError::Sandbox),
            "{bad}"
        );
    }
    // A broken host is refused even when headers name the sandbox.
    assert!(with(vec![id], vec![b"1"], "user@localhost").is_err());
}

fn files(method: &str, path: &str, query: &str) -> Result<Route, RouteError> {
    route(&Head {
        method,
        path,
        query: Some(query),
        hosts: vec![b"localhost"],
        ..Head::default()
    })
}

#[test]
fn signed_urls_are_matched_by_their_token() {
    let token = Secret::new("token");
    let claim = Claim {
        path: "a b/\u{fc}+.txt",
        operation: Operation::Read,
        user: "root",
        expiration: Some("17"),
    };
    let signature = sign(&claim, &token).replace('+', "%2B").replace('/', "%2F");
    let query = format!(
        "path=a+b%2F%C3%BC%2B.txt&username=root&signature={signature}&signature_expiration=17"
    );
    let parse = |method| match files(method, "/files", &query) {
        Ok(Route::Signed(signed)) => signed,
        other => panic!("{other:?}"),
    };
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert!(parse(method).is_signed_with(&token), "{method}");
        assert!(
            !parse(method).is_signed_with(&Secret::new("other")),
            "{method}"
        );
    }
    assert!(!parse("POST").is_signed_with(&token));
    assert_eq!(parse("GET").port(), 49983);
}

#[test]
fn what_is_not_a_signed_url() {
    for (method, path, query) in [
        ("DELETE", "/files", "signature=v1_x"),
        ("GET", "/files/", "signature=v1_x"),
        ("GET", "/filesx", "signature=v1_x"),
        ("GET", "/files", "path=x"),
        ("GET", "/files", "Signature=v1_x"),
    ] {
        assert_eq!(files(method, path, query), Ok(Route::Control), "{query}");
    }
    let long = format!("signature=v1_x&path={}", "a".repeat(65_536));
    let over = format!("signature=v1_x&path={}", "a".repeat(MAX_SIGNED_PATH + 1));
    for query in [
        "signature=v1_a&signature=v1_b",
        "signature=v1_a&path=%zz",
        "signature=v1_a&path=%ff",
        "signature=v1_a&path=%2",
        "signature=v1_0123456789012345678901234567890123456789012345",
        &long,
        &over,
    ] {
        assert!(
            matches!(files("GET", "/files", query), Err(RouteError::Signed(_))),
            "{query:.60}"
        );
    }
}

#[test]
fn internal_routes_under_every_spelling() {
    for path in [
        "/init",
        "/INIT",
        "/init/",
        "//init",
        "/./init",
        "/x/../init",
        "/%69nit",
        "/%2569nit",
        "/%252569nit",
        "/%2e%2finit",
        "/x%2f..%2finit",
        "/x/%2e%2e/init",
        "/x/%252e%252e/init",
        "\\init",
        "/%5cinit",
        "/init;x=1",
        "/init%3bx",
        "/init%00",
        "/init%3fx",
        "/init%20",
        "/init/more",
        "/init/../health",
        "/freeze",
        "/unfreeze",
        "/collapse",
        "/fsfreeze",
        "/fsthaw",
        "/upgrade",
        "init",
        "*/../init",
    ] {
        assert!(is_agent_internal(path), "{path}");
    }
    let nested = format!("/{}69nit", "%25".repeat(40));
    assert!(!is_agent_internal(&nested), "decoded forty times by nobody");
    let deep = (0..20).fold(String::from("/init"), |path, _| path.replace('i', "%69"));
    assert!(is_agent_internal(&deep));
}

#[test]
fn public_routes_stay_public() {
    for path in [
        "/",
        "/health",
        "/initial",
        "/files",
        "/x/init",
        "/process.Process/Start",
        "*",
        "/%zz",
        "/100%",
        "/files/%25",
    ] {
        assert!(!is_agent_internal(path), "{path}");
    }
}

proptest! {
    #[test]
    fn a_sandbox_comes_only_from_a_valid_id_and_port(
        text in "[0-9a-zA-Z.:@%_\\[\\]-]{0,80}",
    ) {
        if let Ok(Route::Sandbox(target)) = host(&text) {
            prop_assert_eq!(SandboxId::parse(target.sandbox.as_str()), Ok(target.sandbox));
            prop_assert_ne!(target.port, 0);
        }
    }

    #[test]
    fn nothing_panics(text in ".*", query in ".*") {
        let _ = host(&text);
        let _ = is_agent_internal(&text);
        let _ = files("GET", "/files", &query);
    }

    #[test]
    fn an_encoded_internal_route_is_always_seen(
        route in prop::sample::select(INTERNAL_ROUTES.to_vec()),
        rounds in 0usize..4,
    ) {
        let mut path = format!("/{route}");
        for _ in 0..rounds {
            path = path.bytes().map(|b| if b == b'%' { "%25".to_owned() } else if b == b'i' { "%69".to_owned() } else { char::from(b).to_string() }).collect();
        }
        prop_assert!(is_agent_internal(&path));
    }
}
