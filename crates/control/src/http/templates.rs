//! Reading templates. They are the node's built-in ones: public, and of no team.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hearth_wire::e2b::{Template, TemplateAlias, TemplateBuild, TemplateWithBuilds};

use super::body::Name;
use super::error::ApiError;
use crate::app::{App, Caller};
use crate::clock::rfc3339;
use crate::names::TemplateName;
use crate::parse::shorten;
use crate::ports;

const READY: &str = "ready";

pub(super) async fn list(State(app): State<Arc<App>>, _caller: Caller) -> Json<Vec<Template>> {
    Json(app.node.templates().iter().map(template).collect())
}

pub(super) async fn one(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Name(name): Name,
) -> Result<Json<TemplateWithBuilds>, ApiError> {
    let found = find(&app, &name)?;
    let template = template(&found);
    Ok(Json(TemplateWithBuilds {
        builds: vec![TemplateBuild {
            build_id: template.build_id.clone(),
            status: READY.into(),
            created_at: template.created_at.clone(),
            updated_at: template.updated_at.clone(),
            finished_at: template.updated_at.clone(),
            cpu_count: template.cpu_count,
            memory_mb: template.memory_mb,
            disk_size_mb: template.disk_size_mb,
            envd_version: template.envd_version.clone(),
        }],
        template,
    }))
}

pub(super) async fn alias(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Name(name): Name,
) -> Result<Json<TemplateAlias>, ApiError> {
    let found = find(&app, &name)?;
    Ok(Json(TemplateAlias {
        template_id: found.id.to_string(),
        public: true,
    }))
}

/// A template the caller may use, by id or name.
pub(super) fn find(app: &App, text: &str) -> Result<ports::Template, ApiError> {
    TemplateName::parse(text)
        .ok()
        .and_then(|name| name.find(&app.node.templates()).cloned())
        .ok_or_else(|| {
            ApiError::new(
                StatusCode::NOT_FOUND,
                format!("template {:?} not found", shorten(text)),
            )
        })
}

fn template(found: &ports::Template) -> Template {
    Template {
        template_id: found.id.to_string(),
        build_id: found.build_id.clone(),
        cpu_count: found.size.vcpu,
        memory_mb: found.size.memory_mib,
        disk_size_mb: found.size.disk_mib,
        public: true,
        aliases: found.aliases.clone(),
        names: found.aliases.clone(),
        created_at: rfc3339(found.created_ms),
        updated_at: rfc3339(found.updated_ms),
        // What a default template says of others' use of it: nothing.
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: 0,
        envd_version: found.envd_version.clone(),
        build_status: READY.into(),
        is_default: true,
    }
}
