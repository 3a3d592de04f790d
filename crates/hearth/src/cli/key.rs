//! `hearth key`: makes, lists and revokes API keys. Works on the database itself, with the
//! server up or not; only root can.

use std::process::ExitCode;

use hearth_control::keys::{KeyRecord, Keys, Revoked, TeamLimits};
use hearth_model::id::TeamId;
use serde_json::json;

use super::{EXIT_USAGE, Failure, Folders, Outcome, out, table};
use crate::wiring::db_path;

/// The team of keys that name none.
pub(crate) const DEFAULT_TEAM: &str = "default";

#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it: this is the only time it is shown.
    Create {
        #[command(flatten)]
        folders: Folders,
        /// Team the key is of; made when new.
        #[arg(long, default_value = DEFAULT_TEAM)]
        team: String,
        /// What the key is for.
        #[arg(long, default_value = "")]
        name: String,
        /// Set the team's limit of sandboxes alive at once; 0 removes it.
        #[arg(long)]
        limit: Option<u32>,
        #[arg(long)]
        json: bool,
    },
    /// List keys; the keys themselves are not kept.
    List {
        #[command(flatten)]
        folders: Folders,
        #[arg(long)]
        team: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key by its id (see `list`); it opens nothing from then on.
    Revoke {
        #[command(flatten)]
        folders: Folders,
        id: String,
        #[arg(long)]
        team: Option<String>,
        #[arg(long)]
        json: bool,
    },
}

async fn open(folders: &Folders) -> Result<Keys, Failure> {
    std::fs::create_dir_all(&folders.state_dir)
        .map_err(|e| Failure::from_error("making the state folder", &e))?;
    Keys::open(&db_path(&folders.state_dir)).await.map_err(|e| {
        Failure::from_error("opening the database", &e).hint("run it as root on the server's host")
    })
}

fn team_id(text: &str) -> Result<TeamId, Failure> {
    TeamId::parse(text).map_err(|e| Failure::new(format!("--team {text:?}: {e}")).code(EXIT_USAGE))
}

pub(crate) async fn run(command: KeyCommand) -> Outcome {
    match command {
        KeyCommand::Create {
            folders,
            team,
            name,
            limit,
            json,
        } => {
            let (keys, team) = (open(&folders).await?, team_id(&team)?);
            let failed = |e: &dyn std::error::Error| Failure::from_error("making the key", e);
            let key = keys.create(&team, &name).await.map_err(|e| failed(&e))?;
            if let Some(limit) = limit {
                let mut limits: TeamLimits = keys
                    .team_limits(&team)
                    .await
                    .map_err(|e| failed(&e))?
                    .unwrap_or(TeamLimits {
                        max_live: None,
                        max_timeout_h: None,
                    });
                limits.max_live = (limit > 0).then_some(limit);
                keys.set_team_limits(&team, limits)
                    .await
                    .map_err(|e| failed(&e))?;
            }
            if json {
                let made = json!({ "id": key.id, "team": team, "key": key.secret.expose() });
                out::print(&format!("{made}\n"))?;
            } else {
                out::print(&format!("{}\n", key.secret.expose()))?;
                eprintln!("id {}, team {team}; the key is not shown again", key.id);
            }
            keys.close().await;
        }
        KeyCommand::List {
            folders,
            team,
            json,
        } => {
            let keys = open(&folders).await?;
            let team = team.as_deref().map(team_id).transpose()?;
            let all = keys
                .list(team.as_ref())
                .await
                .map_err(|e| Failure::from_error("listing keys", &e))?;
            if json {
                let rows: Vec<_> = all
                    .iter()
                    .map(|k| {
                        json!({
                            "id": k.id, "team": k.team, "name": k.name, "mask": k.mask,
                            "createdAt": rfc3339(Some(k.created_ms)), "revokedAt": rfc3339(k.revoked_ms),
                            "lastUsed": rfc3339(k.last_used_ms),
                        })
                    })
                    .collect();
                out::print(&format!("{}\n", json!(rows)))?;
            } else {
                let header = ["ID", "TEAM", "KEY", "NAME", "CREATED", "LAST USED", "STATE"];
                let row = |k: KeyRecord| {
                    let state = if k.revoked_ms.is_some() {
                        "revoked"
                    } else {
                        "valid"
                    };
                    [
                        k.id,
                        k.team,
                        k.mask,
                        k.name,
                        rfc3339(Some(k.created_ms)).unwrap_or_default(),
                        rfc3339(k.last_used_ms).unwrap_or_else(|| "never".into()),
                        state.into(),
                    ]
                };
                table::show(header, all.into_iter().map(row).collect())?;
            }
            keys.close().await;
        }
        KeyCommand::Revoke {
            folders,
            id,
            team,
            json,
        } => {
            let keys = open(&folders).await?;
            let team = team.as_deref().map(team_id).transpose()?;
            let revoked = keys
                .revoke(&id, team.as_ref())
                .await
                .map_err(|e| Failure::from_error("revoking the key", &e))?;
            keys.close().await;
            let text = match revoked {
                Revoked::Now => "revoked",
                Revoked::Before => "was revoked before",
                Revoked::Unknown => {
                    return Err(Failure::new(format!("there is no key with the id {id:?}"))
                        .hint("`hearth key list` shows the ids"));
                }
            };
            if json {
                out::print(&format!("{}\n", json!({ "id": id, "state": text })))?;
            } else {
                out::print(&format!("{id} {text}\n"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rfc3339(ms: Option<i64>) -> Option<String> {
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms?) * 1_000_000).ok()?;
    at.format(&time::format_description::well_known::Rfc3339)
        .ok()
}
