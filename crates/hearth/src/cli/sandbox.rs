//! `hearth sandbox`: sandboxes through the API, as any client has them.

mod exec;

use std::collections::BTreeMap;
use std::process::ExitCode;

use hearth_model::id::SandboxId;
use hearth_wire::e2b::{ListedSandbox, NewSandbox, SandboxDetail};
use http::Method;
use serde_json::Value;

use super::api::{Api, Target, encode};
use super::{EXIT_USAGE, Failure, Outcome, out, table};

/// Sandboxes of one page, the most the API gives.
const PAGE: usize = 100;

#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum SandboxCommand {
    /// Create a sandbox and print its id.
    Create(CreateArgs),
    /// List the sandboxes of your team.
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one sandbox; for one that is gone, when and why it ended.
    Info(OneArgs),
    /// Run a command in a sandbox, with its output, input and exit status.
    Exec(exec::ExecArgs),
    /// End sandboxes.
    Kill(KillArgs),
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    target: Target,
    /// Name or id of the template; default: base.
    template: Option<String>,
    /// The same, as an option.
    #[arg(
        long = "template",
        value_name = "TEMPLATE",
        conflicts_with = "template"
    )]
    template_option: Option<String>,
    /// Seconds until it ends by itself.
    #[arg(long)]
    timeout: Option<u64>,
    /// Something to find it by, as KEY=VALUE; may be given several times.
    #[arg(long = "metadata", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Environment of every process in it, as KEY=VALUE; may be given several times.
    #[arg(long = "env", short = 'e', value_parser = pair)]
    env: Vec<(String, String)>,
    /// No connections to the outside.
    #[arg(long)]
    no_internet: bool,
    /// Print the API's object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    target: Target,
    /// Only those with this metadata, as KEY=VALUE; may be given several times.
    #[arg(long = "metadata", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Only those in this state.
    #[arg(long, value_parser = ["running", "paused"])]
    state: Option<String>,
    /// At most this many, the newest; default: all.
    #[arg(long)]
    limit: Option<usize>,
    /// Print the API's objects.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OneArgs {
    #[command(flatten)]
    target: Target,
    id: String,
    /// Print the API's object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    target: Target,
    #[arg(required = true)]
    ids: Vec<String>,
    /// Print which were ended.
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it must have the form KEY=VALUE".into()),
    }
}

/// Characters of a wrong id that are shown.
const MAX_SHOWN: usize = 60;

/// Ids become parts of paths: nothing else than an id does.
fn id(text: &str) -> Result<SandboxId, Failure> {
    SandboxId::parse(text).map_err(|e| {
        let shown: String = text.chars().take(MAX_SHOWN).collect();
        Failure::new(format!("{shown:?} is not the id of a sandbox: {e}")).code(EXIT_USAGE)
    })
}

fn pretty(value: &Value) -> Result<(), Failure> {
    out::print(&format!("{value:#}\n"))
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value)
        .map_err(|e| Failure::from_error("reading the server's answer", &e))
}

pub(crate) async fn run(command: SandboxCommand) -> Outcome {
    match command {
        SandboxCommand::Create(args) => create(args).await,
        SandboxCommand::List(args) => list(args).await,
        SandboxCommand::Info(args) => info(args).await,
        SandboxCommand::Exec(args) => exec::run(args).await,
        SandboxCommand::Kill(args) => kill(args).await,
    }
}

async fn create(args: CreateArgs) -> Outcome {
    let api = Api::open(&args.target)?;
    let wanted = NewSandbox {
        template_id: args
            .template
            .or(args.template_option)
            .unwrap_or_else(|| "base".into()),
        timeout: args.timeout,
        metadata: args.metadata.into_iter().collect(),
        env_vars: args.env.into_iter().collect(),
        allow_internet_access: args.no_internet.then_some(false),
    };
    let made = api
        .call(Method::POST, "/v2/sandboxes", Some(&wanted))
        .await?
        .body;
    if args.json {
        pretty(&made)?;
    } else {
        let made: hearth_wire::e2b::Sandbox = parsed(made)?;
        out::print(&format!("{}\n", out::clean(&made.sandbox_id)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ListArgs) -> Outcome {
    let api = Api::open(&args.target)?;
    let most = args.limit.unwrap_or(usize::MAX);
    let mut path = format!("/v2/sandboxes?limit={}", most.clamp(1, PAGE));
    if let Some(state) = &args.state {
        path.push_str("&state=");
        path.push_str(state);
    }
    if !args.metadata.is_empty() {
        // The filter is itself a query, encoded as one value.
        let pairs: Vec<String> = args
            .metadata
            .iter()
            .map(|(k, v)| format!("{}={}", encode(k), encode(v)))
            .collect();
        path.push_str("&metadata=");
        path.push_str(&encode(&pairs.join("&")));
    }
    let all = api.all(&path, most).await?;
    if args.json {
        pretty(&Value::Array(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::with_capacity(all.len());
    for item in all {
        let one: ListedSandbox = parsed(item)?;
        rows.push([
            one.sandbox_id,
            one.alias.unwrap_or(one.template_id),
            format!("{:?}", one.state).to_lowercase(),
            short_time(&one.started_at),
            short_time(&one.end_at),
            one.cpu_count.to_string(),
            format!("{} MiB", one.memory_mb),
            one.tier.unwrap_or_default(),
        ]);
    }
    table::show(
        [
            "ID", "TEMPLATE", "STATE", "STARTED", "ENDS", "CPU", "MEMORY", "TIER",
        ],
        rows,
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn info(args: OneArgs) -> Outcome {
    let api = Api::open(&args.target)?;
    let found = api
        .call(
            Method::GET,
            &format!("/sandboxes/{}", id(&args.id)?),
            None::<&Value>,
        )
        .await?
        .body;
    if args.json {
        pretty(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    let one: SandboxDetail = parsed(found)?;
    let listed = one.listed;
    let metadata = |map: &BTreeMap<String, String>| {
        map.iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (name, value) in [
        ("id", listed.sandbox_id),
        (
            "template",
            match listed.alias {
                Some(alias) if alias != listed.template_id => {
                    format!("{alias} ({})", listed.template_id)
                }
                _ => listed.template_id,
            },
        ),
        ("state", format!("{:?}", listed.state).to_lowercase()),
        ("started", listed.started_at),
        ("ends", listed.end_at),
        (
            "size",
            format!(
                "{} CPU, {} MiB memory, {} MiB disk",
                listed.cpu_count, listed.memory_mb, listed.disk_size_mb
            ),
        ),
        ("isolation", listed.tier.unwrap_or_default()),
        (
            "internet",
            if one.allow_internet_access == Some(false) {
                "closed".into()
            } else {
                "open".into()
            },
        ),
        ("metadata", metadata(&listed.metadata)),
    ] {
        out::print(&format!("{name:<10} {}\n", out::clean(&value)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn kill(args: KillArgs) -> Outcome {
    let api = Api::open(&args.target)?;
    let ids: Vec<SandboxId> = args
        .ids
        .iter()
        .map(|text| id(text))
        .collect::<Result<_, _>>()?;
    let mut killed = Vec::new();
    let mut failed = None;
    for id in ids {
        match api
            .call(Method::DELETE, &format!("/sandboxes/{id}"), None::<&Value>)
            .await
        {
            Ok(_) => killed.push(id.to_string()),
            Err(failure) => {
                // The others are still to be ended; the last failure is the command's own.
                if let Some(earlier) = failed.replace(failure) {
                    earlier.print();
                }
            }
        }
    }
    if args.json {
        pretty(&serde_json::json!({ "killed": killed }))?;
    } else {
        for id in killed {
            out::print(&format!("{id}\n"))?;
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// `2026-01-31T10:11:12.345Z` without what nobody reads in a table.
fn short_time(rfc3339: &str) -> String {
    rfc3339.get(..19).unwrap_or(rfc3339).replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_ids_are_checked() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        for bad in ["", "a", "=b"] {
            assert!(pair(bad).is_err(), "{bad}");
        }
        let long = "x".repeat(70_000);
        for bad in ["", "..", "../x", long.as_str()] {
            let failure = id(bad).unwrap_err();
            assert!(failure.what.len() < 300 && failure.code == EXIT_USAGE);
        }
    }

    #[test]
    fn times_are_short_in_tables() {
        assert_eq!(
            short_time("2026-01-31T10:11:12.345Z"),
            "2026-01-31 10:11:12"
        );
        assert_eq!(short_time("x"), "x");
    }
}
