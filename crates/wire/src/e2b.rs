//! The REST objects of E2B (`e2b.md` A.6): field names are the contract.
//!
//! Answers are written by control and read by the CLI; requests are written by the CLI.
//! Control reads requests by hand, field by field, so that each fault names its field: the
//! request types here are the writer's side only. Times are RFC 3339 text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The legacy `clientID`; any constant works.
pub const CLIENT_ID: &str = "6532622b";
/// Where the next page starts; absent on the last page.
pub const NEXT_TOKEN_HEADER: &str = "x-next-token";
/// How many running sandboxes match the filter of a list.
pub const TOTAL_RUNNING_HEADER: &str = "x-total-running";
/// Holds the API key.
pub const API_KEY_HEADER: &str = "x-api-key";
/// Makes a create repeatable.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";

/// Body of every 4xx and 5xx. `code` equals the HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: u16,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

/// `POST /v2/sandboxes`. Absent fields take the server's defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(rename = "envVars", skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
}

/// `POST /v2/sandboxes/{id}/connect`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConnectSandbox {
    /// Seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// `POST /sandboxes/{id}/timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SetTimeout {
    /// Seconds from now.
    pub timeout: u64,
}

/// The answer to create and connect (A.6.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID")]
    pub client_id: String,
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(rename = "envdAccessToken", default)]
    pub envd_access_token: Option<String>,
    #[serde(rename = "trafficAccessToken", default)]
    pub traffic_access_token: Option<String>,
    /// Overrides the client's own domain when it is not null.
    #[serde(default)]
    pub domain: Option<String>,
}

/// The two states clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    Running,
    Paused,
}

/// One item of a list (A.6.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID")]
    pub client_id: String,
    #[serde(rename = "startedAt")]
    pub started_at: String,
    #[serde(rename = "endAt")]
    pub end_at: String,
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    pub state: SandboxState,
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    /// Hearth's own field: the isolation tier that carries the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
}

/// What happens at the timeout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    #[serde(rename = "onTimeout")]
    pub on_timeout: String,
    #[serde(rename = "autoResume")]
    pub auto_resume: bool,
}

/// One sandbox in full (A.6.4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxDetail {
    #[serde(flatten)]
    pub listed: ListedSandbox,
    #[serde(rename = "envdAccessToken", default)]
    pub envd_access_token: Option<String>,
    /// Null when the client chose nothing.
    #[serde(rename = "allowInternetAccess", default)]
    pub allow_internet_access: Option<bool>,
    #[serde(default)]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
}

/// One reading of a sandbox's use. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxMetric {
    pub timestamp: String,
    #[serde(rename = "timestampUnix")]
    pub timestamp_unix: i64,
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    #[serde(rename = "cpuUsedPct")]
    pub cpu_used_pct: f64,
    #[serde(rename = "memUsed")]
    pub mem_used: u64,
    #[serde(rename = "memTotal")]
    pub mem_total: u64,
    #[serde(rename = "memCache")]
    pub mem_cache: u64,
    #[serde(rename = "diskUsed")]
    pub disk_used: u64,
    #[serde(rename = "diskTotal")]
    pub disk_total: u64,
}

/// `GET /sandboxes/metrics`: the last reading of each sandbox that has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxesWithMetrics {
    pub sandboxes: BTreeMap<String, SandboxMetric>,
}

/// One line of the v1 log; `line` is a JSON object as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub timestamp: String,
    pub line: String,
}

/// One structured log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub timestamp: String,
    pub message: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    pub fields: BTreeMap<String, String>,
}

/// `GET /sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogs {
    pub logs: Vec<LogLine>,
    #[serde(rename = "logEntries")]
    pub log_entries: Vec<LogEntry>,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogsV2 {
    pub logs: Vec<LogEntry>,
}

/// A template in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    pub public: bool,
    pub aliases: Vec<String>,
    pub names: Vec<String>,
    #[serde(rename = "createdAt")]
    pub created_at: String,
    #[serde(rename = "updatedAt")]
    pub updated_at: String,
    #[serde(rename = "createdBy")]
    pub created_by: Option<TeamUser>,
    #[serde(rename = "lastSpawnedAt")]
    pub last_spawned_at: Option<String>,
    #[serde(rename = "spawnCount")]
    pub spawn_count: u64,
    #[serde(rename = "buildCount")]
    pub build_count: u32,
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
    #[serde(rename = "buildStatus")]
    pub build_status: String,
    #[serde(rename = "isDefault")]
    pub is_default: bool,
}

/// Who built a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeamUser {
    pub id: String,
    pub email: String,
}

/// `GET /templates/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateWithBuilds {
    #[serde(flatten)]
    pub template: Template,
    pub builds: Vec<TemplateBuild>,
}

/// One build of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateBuild {
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub status: String,
    #[serde(rename = "createdAt")]
    pub created_at: String,
    #[serde(rename = "updatedAt")]
    pub updated_at: String,
    #[serde(rename = "finishedAt")]
    pub finished_at: String,
    #[serde(rename = "cpuCount")]
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    #[serde(rename = "envdVersion")]
    pub envd_version: String,
}

/// `GET /templates/aliases/{alias}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateAlias {
    #[serde(rename = "templateID")]
    pub template_id: String,
    pub public: bool,
}
