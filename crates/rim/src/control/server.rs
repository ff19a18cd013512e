//! The coordinator as a server: HTTP and JSON on one listener, one machine behind it.
//!
//! Owns the listener, its limits and the routes of `cheetah_core::api`. Never: what a call is answered with.
//! Key invariants: a request's body, headers and time to arrive are bounded, and so are the connections, of
//! which one that says nothing goes when others need its place; a caller that goes away is hung up on in the
//! machine.
//! Tests: `tests/control.rs`, `lab/tests/hostile.rs`.

use super::Clock;
use super::addresses::{public_at, reached_at, url_of};
use super::discovery::{Announcement, announce};
use super::doorkeeper::Doorkeeper;
use super::error::CoordinateError;
use super::journal::{BY, BY_HEADER, PEER, by};
use super::machine::Callers;
use super::membership::{self, Membership, Met, invite, meet};
use super::options::{Access, CoordinateOptions};
use super::seal::{self, SEAL_HEADER};
use super::service::{Role, Service};
use super::wire::{
    GrowBody, LeaveBody, OPENAPI, POOL_HEADER, VERSION_HEADER, answer_body, status, version_refusal,
};
use crate::descriptors;
use crate::members::Invitation;
use crate::seating::{Place, Seating};
use axum::Router;
use axum::body::{HttpBody, to_bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequestParts, Json, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use cheetah_core::api::{API_VERSION, Amend, Attach, Call, Create, Join, Refusal, RefusalCode, Renew, Sync};
use cheetah_core::content::Tell;
use cheetah_core::custody::Said;
use cheetah_core::limits::{
    CONTROL_CONNECTIONS_MAX, CONTROL_PEER_CONNECTIONS_MAX, CONTROL_REQUEST_BYTES_MAX, DESCRIPTORS_SPARE,
};
use cheetah_core::map::{BadIdentity, DonorId, LeaseToken, PoolId};
use cheetah_core::members::Caller;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

/// The time a request's head may take to arrive, and a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// The time a request's body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);
/// How long connections get to finish when the coordinator stops.
const STOP_TIME: Duration = Duration::from_secs(1);

/// A coordinator that listens. Dropping it stops it, too.
#[derive(Debug)]
pub struct Coordination {
    address: SocketAddr,
    pool: PoolId,
    is_new: bool,
    role: watch::Receiver<Role>,
    callers: Callers,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), CoordinateError>>,
    _announcement: Option<Announcement>,
}

impl Coordination {
    /// Where it listens, with the port that it got.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it is reached from this machine.
    #[must_use]
    pub fn url(&self) -> String {
        url_of(self.address, self.callers.membership().is_some())
    }

    /// How other machines reach it, where it listens for them.
    #[must_use]
    pub fn url_for_others(&self) -> String {
        let at = reached_at(self.address).first().copied().unwrap_or(self.address);
        url_of(at, self.callers.membership().is_some())
    }

    /// Makes a token by which others come in: none where the pool is in the clear.
    ///
    /// # Errors
    /// The pool's limits, or its store.
    pub async fn invite(
        &self,
        role: cheetah_core::members::Role,
        uses: Option<u32>,
        lasts: Duration,
    ) -> Result<Option<Invitation>, Refusal> {
        // As other machines reach it, also where it listens everywhere.
        let at = reached_at(self.address).first().copied().unwrap_or(self.address);
        invite(&self.callers, &at.to_string(), role, uses, lasts).await
    }

    /// Whether it leads its pool; changes only where several coordinators share a state.
    #[must_use]
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Nothing was stored before: no donor of any pool belongs to it.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Ends when the coordinator does: by itself only when its store fails for good.
    ///
    /// # Errors
    /// What ended it.
    pub async fn ended(&mut self) -> Result<(), CoordinateError> {
        (&mut self.task).await.unwrap_or_else(|error| Err(CoordinateError::Store { why: error.to_string() }))
    }

    /// Answers what is under way, closes, and ends.
    ///
    /// # Errors
    /// As `ended`.
    pub async fn stop(mut self) -> Result<(), CoordinateError> {
        drop(self.stop.take());
        self.ended().await
    }
}

/// Binds, restores the state and serves. Returns once calls are answered.
///
/// # Errors
/// When the address or the state cannot be had.
pub async fn coordinate(options: CoordinateOptions) -> Result<Coordination, CoordinateError> {
    let allowed = descriptors::raise();
    let places = allowed.checked_sub(DESCRIPTORS_SPARE).filter(|places| *places >= DESCRIPTORS_SPARE);
    let places = places.ok_or(CoordinateError::Descriptors { allowed })?;
    let places = usize::try_from(places).unwrap_or(usize::MAX).min(CONTROL_CONNECTIONS_MAX);
    let listen = options.listen;
    if options.access == Access::Plaintext
        && let Some(address) = public_at(listen)
    {
        return Err(CoordinateError::Public { address });
    }
    let listener = TcpListener::bind(listen).await.map_err(|why| match why.kind() {
        std::io::ErrorKind::AddrInUse => CoordinateError::PortInUse { address: listen },
        _ => CoordinateError::Listen { address: listen, why },
    })?;
    let address = listener.local_addr().map_err(|why| CoordinateError::Listen { address: listen, why })?;
    let clock = Clock::start();
    let service = Service::start(&options, address, clock).await?;
    let (pool, is_new) = (service.pool(), service.is_new());
    let (role, callers) = (service.role(), service.callers());
    let exposed = !address.ip().is_loopback();
    let (stop, stopping) = oneshot::channel();
    let seating = Seating::new(places, CONTROL_PEER_CONNECTIONS_MAX);
    let task = tokio::spawn(serve(listener, service, callers.clone(), seating, stopping));
    // What is announced is found by plain HTTP.
    let exposed = exposed && callers.membership().is_none();
    let announcement = exposed.then(|| announce(pool, address)).flatten();
    Ok(Coordination {
        address,
        pool,
        is_new,
        role,
        callers,
        stop: Some(stop),
        task,
        _announcement: announcement,
    })
}

/// Accepts and serves until `stop` or until the service fails, then lets connections finish.
async fn serve(
    listener: TcpListener,
    service: Service,
    callers: Callers,
    seating: Seating,
    stop: oneshot::Receiver<()>,
) -> Result<(), CoordinateError> {
    let (closing, closed) = watch::channel(false);
    let (membership, router) = (callers.membership().cloned(), router(callers));
    let accepting = async {
        let mut connections = JoinSet::new();
        let mut closed_here = closed.clone();
        loop {
            while connections.try_join_next().is_some() {}
            let closing = async {
                let _ = closed_here.wait_for(|closed| *closed).await;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = closing => break,
            };
            match accepted {
                Ok((stream, peer)) => match seating.take(Some(peer.ip().to_canonical())) {
                    Some(place) => {
                        let (router, membership) = (router.clone(), membership.clone());
                        let serving = connection(stream, place, router, membership, closed.clone());
                        connections.spawn(PEER.scope(peer.ip().to_canonical(), serving));
                    }
                    None => tracing::debug!("a control connection of {peer} was closed: all are at work"),
                },
                // Out of descriptors, or the peer is gone already: neither ends the others.
                Err(error) => {
                    tracing::warn!("accepting a control connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        let finish = async { while connections.join_next().await.is_some() {} };
        // What is not done by then is cut off with the set.
        let _ = tokio::time::timeout(STOP_TIME, finish).await;
    };
    let running = async {
        let result = service.run(stop).await;
        closing.send_replace(true);
        result
    };
    let certified = async {
        match &membership {
            Some(membership) => membership.stay_certified().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        (result, ()) = async { tokio::join!(running, accepting) } => result,
        () = certified => Ok(()),
    }
}

async fn connection(
    stream: TcpStream,
    place: Place,
    router: Router,
    membership: Option<Arc<Membership>>,
    closed: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let met = tokio::select! {
        met = meet(stream, membership.as_deref()) => met,
        () = place.wanted() => return,
    };
    match met {
        Ok((Met::Plain(stream), caller)) => converse(stream, caller, place, router, closed).await,
        Ok((Met::Tls(stream), caller)) => converse(*stream, caller, place, router, closed).await,
        Err(error) => tracing::debug!("control connection: {error}"),
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    caller: Caller,
    place: Place,
    router: Router,
    mut closed: watch::Receiver<bool>,
) {
    let place = Arc::new(place);
    let (seated, router) = (Arc::clone(&place), TowerToHyperService::new(router));
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Arc::clone(&seated));
        request.extensions_mut().insert(caller);
        router.call(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(64 << 10);
    let serving = http.serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let closing = async {
        // A sender that is gone has closed, too.
        let _ = closed.wait_for(|closed| *closed).await;
    };
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = place.wanted() => return,
        () = closing => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!("control connection: {error}");
    }
}

fn router(callers: Callers) -> Router {
    Router::new()
        .route("/", get(|| async { BANNER }))
        .route("/openapi.json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) }))
        .route("/v1/pool", get(|on: On| async move { answer(&on, Call::Pool).await }))
        .route("/v1/donors", post(join))
        .route("/v1/donors/{donor}/sync", post(sync))
        .route("/v1/donors/{donor}/leave", post(leave))
        .route("/v1/volumes", post(create))
        .route("/v1/volumes/{name}", get(show).delete(delete_volume))
        .route("/v1/volumes/{name}/manifest", get(manifest))
        .route("/v1/validations", post(validation))
        .route("/v1/volumes/{name}/grow", post(grow))
        .route("/v1/volumes/{name}/log", get(log).post(say))
        .route("/v1/volumes/{name}/leases", post(attach))
        .route("/v1/volumes/{name}/leases/{token}/renew", post(renew))
        .route("/v1/volumes/{name}/leases/{token}/amend", post(amend))
        .route("/v1/volumes/{name}/leases/{token}/content", post(tell))
        .route("/v1/volumes/{name}/leases/{token}", delete(detach))
        .merge(membership::routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        .layer(from_fn_with_state(Arc::new(Doorkeeper::of_this_machine()), admit))
        .with_state(callers)
}

const BANNER: &str = "This is a Cheetah coordinator: it pools idle memory into block volumes.\n\
                      Its API is described at /openapi.json; `cheetah status` shows the pool.\n";

/// Where calls go, and the pool that this one is meant for.
pub(super) struct On {
    pub(super) callers: Callers,
    pub(super) pool: Option<PoolId>,
    pub(super) caller: Caller,
}

/// A request that is refused before it is a call.
pub(super) struct NoCall(Refusal);

impl IntoResponse for NoCall {
    fn into_response(self) -> Response {
        refusal(&self.0)
    }
}

impl FromRequestParts<Callers> for On {
    type Rejection = NoCall;

    async fn from_request_parts(parts: &mut Parts, callers: &Callers) -> Result<Self, NoCall> {
        let pool = parts.headers.get(POOL_HEADER).map(|pool| {
            let bad = |why: &dyn fmt::Display| NoCall(invalid(format!("the header {POOL_HEADER}: {why}")));
            let pool = pool.to_str().map_err(|why| bad(&why))?;
            pool.parse().map_err(|why: BadIdentity| bad(&why))
        });
        let caller = parts.extensions.get().copied().unwrap_or(Caller::Stranger);
        Ok(On { callers: callers.clone(), pool: pool.transpose()?, caller })
    }
}

pub(super) type Given<T> = Result<Json<T>, JsonRejection>;

async fn join(on: On, body: Given<Join>) -> Response {
    with(body, |join| answer(&on, Call::Join(join))).await
}

async fn sync(on: On, Path(donor): Path<String>, body: Given<Sync>) -> Response {
    match donor.parse::<DonorId>() {
        Ok(donor) => with(body, |sync| answer(&on, Call::Sync { donor, sync })).await,
        Err(why) => refusal(&invalid(format!("the donor in the path: {why}"))),
    }
}

async fn leave(on: On, Path(donor): Path<String>, body: Given<LeaveBody>) -> Response {
    with(body, |LeaveBody { force }| answer(&on, Call::Leave { donor, force })).await
}

async fn create(on: On, body: Given<Create>) -> Response {
    with(body, |create| answer(&on, Call::Create(create))).await
}

async fn show(on: On, Path(name): Path<String>) -> Response {
    answer(&on, Call::Show { name }).await
}

async fn manifest(on: On, Path(name): Path<String>) -> Response {
    answer(&on, Call::Manifest { name }).await
}

async fn validation(on: On, body: Given<cheetah_core::api::Validation>) -> Response {
    with(body, |validation| answer(&on, Call::Validation(validation))).await
}

async fn delete_volume(on: On, Path(name): Path<String>) -> Response {
    answer(&on, Call::Delete { name }).await
}

async fn grow(on: On, Path(name): Path<String>, body: Given<GrowBody>) -> Response {
    with(body, |GrowBody { size }| answer(&on, Call::Grow { name, size })).await
}

async fn log(on: On, Path(name): Path<String>) -> Response {
    answer(&on, Call::Log { name }).await
}

async fn say(on: On, Path(name): Path<String>, body: Given<Said>) -> Response {
    with(body, |said| answer(&on, Call::Say { name, said })).await
}

async fn attach(on: On, Path(name): Path<String>, body: Given<Attach>) -> Response {
    with(body, |attach| answer(&on, Call::Attach { name, attach })).await
}

async fn renew(on: On, Path((name, token)): Path<(String, String)>, body: Given<Renew>) -> Response {
    match lease(&token) {
        Ok(token) => with(body, |renew| answer(&on, Call::Renew { name, token, renew })).await,
        Err(bad) => refusal(&bad),
    }
}

async fn amend(on: On, Path((name, token)): Path<(String, String)>, body: Given<Amend>) -> Response {
    match lease(&token) {
        Ok(token) => with(body, |amend| answer(&on, Call::Amend { name, token, amend })).await,
        Err(bad) => refusal(&bad),
    }
}

async fn tell(on: On, Path((name, token)): Path<(String, String)>, body: Given<Tell>) -> Response {
    match lease(&token) {
        Ok(token) => with(body, |tell| answer(&on, Call::Tell { name, token, tell })).await,
        Err(bad) => refusal(&bad),
    }
}

async fn detach(on: On, Path((name, token)): Path<(String, String)>) -> Response {
    match lease(&token) {
        Ok(token) => answer(&on, Call::Detach { name, token }).await,
        Err(bad) => refusal(&bad),
    }
}

async fn no_route(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("there is no {method} {path} here; /openapi.json lists what there is");
    refusal(&Refusal { code: RefusalCode::NotFound, message })
}

fn lease(token: &str) -> Result<LeaseToken, Refusal> {
    token.parse().map_err(|why| invalid(format!("the lease in the path: {why}")))
}

pub(super) fn invalid(message: String) -> Refusal {
    Refusal { code: RefusalCode::Invalid, message }
}

pub(super) async fn with<T, F: Future<Output = Response>>(
    body: Given<T>,
    call: impl FnOnce(T) -> F,
) -> Response {
    match body {
        Ok(Json(body)) => call(body).await,
        Err(rejection) => refusal(&invalid(format!("the body of the request: {}", rejection.body_text()))),
    }
}

pub(super) async fn answer(on: &On, call: Call) -> Response {
    match on.callers.call(on.pool, on.caller, call).await {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer_body(&answer)).into_response(),
        Err(bad) => refusal(&bad),
    }
}

pub(super) fn refusal(refusal: &Refusal) -> Response {
    (status(refusal.code), Json(refusal)).into_response()
}

/// Marks every answer with our version, and turns away pages in browsers and a caller that says it speaks
/// another version.
async fn admit(State(doorkeeper): State<Arc<Doorkeeper>>, request: Request, next: Next) -> Response {
    let mut response = match admitted(&doorkeeper, request).await {
        Ok(request) => {
            let place = request.extensions().get::<Arc<Place>>().cloned();
            // From here on it is waited for, and not the caller.
            if let Some(place) = &place {
                place.works();
            }
            let member = request.extensions().get::<Caller>().and_then(|caller| caller.member());
            let by = by(request.headers().get(BY_HEADER).and_then(|by| by.to_str().ok()), member);
            let response = BY.scope(by, next.run(request)).await;
            if let Some(place) = &place {
                place.rests();
            }
            response
        }
        Err(bad) => refusal(&bad),
    };
    response.headers_mut().insert(VERSION_HEADER, HeaderValue::from(API_VERSION));
    sealed(response).await
}

async fn sealed(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    // It is all there: no route streams.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let seal = seal::of_answer(head.status, &head.headers, &body);
    head.headers.insert(SEAL_HEADER, HeaderValue::try_from(seal).expect("digits"));
    Response::from_parts(head, body.into())
}

async fn admitted(doorkeeper: &Doorkeeper, request: Request) -> Result<Request, Refusal> {
    doorkeeper.check(request.method(), request.uri(), request.headers())?;
    let request = arrived(request).await?;
    let theirs =
        request.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    match theirs.filter(|theirs| *theirs != API_VERSION) {
        Some(theirs) => Err(version_refusal(theirs, "the coordinator", "the caller")),
        None => Ok(request),
    }
}

/// The request once all of its body is here: within its limit, in time, and as it was sent, where that is
/// said.
async fn arrived(request: Request) -> Result<Request, Refusal> {
    let (head, body) = request.into_parts();
    let too_large =
        || invalid(format!("the body of the request is over the limit of {CONTROL_REQUEST_BYTES_MAX} bytes"));
    if body.size_hint().lower() > CONTROL_REQUEST_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let body = tokio::time::timeout(BODY_TIME, to_bytes(body, CONTROL_REQUEST_BYTES_MAX)).await;
    let body =
        body.map_err(|_| invalid(format!("the body of the request did not arrive in {BODY_TIME:?}")))?;
    let body = body.map_err(|_| too_large())?;
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    match seal::fits(&head.headers, || seal::of_call(&head.method, path, &head.headers, &body)) {
        Some(false) => Err(Refusal {
            code: RefusalCode::Damaged,
            message: "what came is not what was sent: a bit flipped on its way".to_owned(),
        }),
        Some(true) | None => Ok(Request::from_parts(head, body.into())),
    }
}
