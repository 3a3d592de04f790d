-- Times are milliseconds since the epoch. Every table is STRICT: a wrong type is an error.

CREATE TABLE teams (
    id TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    -- Most sandboxes alive at once; null is no limit.
    max_live INTEGER,
    -- Longest timeout in hours; null leaves the server's own limit.
    max_timeout_h INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE api_keys (
    -- Public id: shown in lists and events, authorises nothing.
    id TEXT PRIMARY KEY,
    team TEXT NOT NULL REFERENCES teams (id),
    name TEXT NOT NULL,
    -- SHA-256 of the whole key.
    hash BLOB NOT NULL UNIQUE,
    mask TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    revoked_ms INTEGER,
    last_used_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    team TEXT NOT NULL REFERENCES teams (id),
    template TEXT NOT NULL,
    alias TEXT,
    envd_version TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('creating', 'running', 'ending', 'ended')),
    -- Grows by one with every change of state.
    generation INTEGER NOT NULL,
    -- Names this run of the sandbox.
    execution TEXT NOT NULL,
    vcpu INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    disk_mib INTEGER NOT NULL,
    internet TEXT NOT NULL CHECK (internet IN ('open', 'closed')),
    -- What the client chose: 0, 1, or null for nothing.
    internet_choice INTEGER,
    env TEXT NOT NULL,
    metadata TEXT NOT NULL,
    access_token TEXT NOT NULL,
    tier TEXT,
    timeout_s INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    started_ms INTEGER,
    -- While creating: when the create is given up. While running: when it ends.
    deadline_ms INTEGER NOT NULL,
    -- The decided end, as JSON; there from the moment of the decision.
    end_reason TEXT,
    ended_ms INTEGER
) STRICT;

-- The page of a list, the count against a team's limit, the next deadline, the pruning.
CREATE INDEX sandboxes_running ON sandboxes (team, started_ms, id) WHERE state = 'running';
CREATE INDEX sandboxes_live ON sandboxes (team) WHERE state IN ('creating', 'running', 'ending');
CREATE INDEX sandboxes_deadline ON sandboxes (deadline_ms) WHERE state = 'running';
CREATE INDEX sandboxes_ended ON sandboxes (ended_ms) WHERE state = 'ended';

-- Append-only. Timelines, flow logs and audit read this table.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    ts_ms INTEGER NOT NULL,
    team TEXT,
    sandbox TEXT,
    kind TEXT NOT NULL,
    cause TEXT,
    -- 'key', 'system', 'operator' or 'guest'.
    actor TEXT NOT NULL,
    -- The key's public id when the actor is a key.
    actor_id TEXT,
    data TEXT NOT NULL
) STRICT;

CREATE INDEX events_sandbox ON events (sandbox, seq) WHERE sandbox IS NOT NULL;
CREATE INDEX events_team ON events (team, seq) WHERE team IS NOT NULL;

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;

CREATE TABLE idempotency (
    team TEXT NOT NULL,
    key TEXT NOT NULL,
    -- SHA-256 of the request.
    request BLOB NOT NULL,
    sandbox TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    -- The answer to repeat; null while the create is going on.
    answer TEXT,
    PRIMARY KEY (team, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_sandbox ON idempotency (sandbox);
CREATE INDEX idempotency_created ON idempotency (created_ms);

CREATE TABLE metrics (
    sandbox TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    -- 1 is kept for a day, 0 for an hour.
    keep INTEGER NOT NULL,
    vcpu INTEGER NOT NULL,
    cpu_pct REAL NOT NULL,
    mem_used INTEGER NOT NULL,
    mem_total INTEGER NOT NULL,
    mem_cache INTEGER NOT NULL,
    disk_used INTEGER NOT NULL,
    disk_total INTEGER NOT NULL,
    PRIMARY KEY (sandbox, at_ms)
) STRICT, WITHOUT ROWID;

CREATE INDEX metrics_hour ON metrics (at_ms) WHERE keep = 0;
CREATE INDEX metrics_day ON metrics (at_ms) WHERE keep = 1;

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
