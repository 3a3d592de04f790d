//! Many clients doing odd things at once.

use hearth_model::end::EndCause;
use hearth_model::node::{CreateError, Report};
use serde_json::json;

use crate::life::counts_live;
use crate::node::Mood;
use crate::server::{Server, until};

/// Whatever order creates, kills, timeouts, connects, deaths and failures meet in, the node
/// holds exactly what the store says runs, and nothing is left half way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_mixture_leaves_store_and_node_agreeing() {
    let server = std::sync::Arc::new(Server::start().await);
    let work = (0..24u64).map(|seed| {
        let server = std::sync::Arc::clone(&server);
        tokio::spawn(async move { wander(&server, seed).await })
    });
    for done in futures::future::join_all(work).await {
        done.unwrap();
    }
    server.node.set_mood(Mood::Good);
    until("store and node agree", || async {
        let running = server.list_all("").await;
        counts_live(&server).await == i64::try_from(running.len()).unwrap()
            && running.len() == server.node.count()
            && running.iter().all(|id| {
                server
                    .node
                    .holds(&hearth_model::id::SandboxId::parse(id).unwrap())
            })
    })
    .await;
    let made = server
        .node
        .creates
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(made > 100, "{made} creates");
}

/// One client that does odd things to its own sandboxes and to those it can list.
async fn wander(server: &Server, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    for _ in 0..30 {
        let some = server.get("/v2/sandboxes?limit=20").await.ok(200).json();
        let some = some.as_array().unwrap();
        let victim = usize::try_from(next(20)).unwrap();
        let id = some
            .get(victim)
            .map(|item| item["sandboxID"].as_str().unwrap().to_owned());
        let answer = match (next(10), id) {
            (0..=4, _) | (_, None) => {
                let timeout = 1 + next(2);
                let body = json!({"templateID": "base", "timeout": timeout});
                server.post("/v2/sandboxes", &body).await
            }
            (5 | 6, Some(id)) => server.delete(&format!("/sandboxes/{id}")).await,
            (7, Some(id)) => {
                let body = json!({"timeout": next(2)});
                server
                    .post(&format!("/sandboxes/{id}/timeout"), &body)
                    .await
            }
            (8, Some(id)) => {
                let path = format!("/v2/sandboxes/{id}/connect");
                server.post(&path, &json!({"timeout": 1})).await
            }
            (_, Some(id)) => {
                let id = hearth_model::id::SandboxId::parse(&id).unwrap();
                server.node.lose(&id);
                let cause = EndCause::Crashed { detail: "x".into() };
                server
                    .reports
                    .send(Report::Died { id, cause })
                    .await
                    .unwrap();
                let mood = match next(3) {
                    0 => Mood::Fail(CreateError::StartFailed { detail: "x".into() }),
                    _ => Mood::Good,
                };
                server.node.set_mood(mood);
                continue;
            }
        };
        let status = answer.status.as_u16();
        assert!(
            [200, 201, 204, 404, 409, 500].contains(&status),
            "{}",
            answer.text
        );
    }
}
