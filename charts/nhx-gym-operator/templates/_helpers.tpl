{{- define "nhx.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "nhx.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "nhx.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "nhx.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nhx.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nhx.labels" -}}
{{ include "nhx.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "nhx.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "nhx.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name must be set when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nhx.keySecretName" -}}
{{- default (printf "%s-key" (include "nhx.fullname" .)) .Values.operatorKey.existingSecret -}}
{{- end -}}

{{- /* A role's image reference. Takes a dict of `root` and `role`. */ -}}
{{- define "nhx.image" -}}
{{- $image := index .root.Values.images .role -}}
{{- $path := $image.repository -}}
{{- with (default .root.Values.image.registry $image.registry) -}}
{{- $path = printf "%s/%s" . $path -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $path $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $path ($image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* What the operator may do in the namespaces that it serves. It reads no Secret, it only creates them. It deletes
pods, and jobs whose spec.ttlSecondsAfterFinished is over: everything else goes when the job that owns it does. */ -}}
{{- define "nhx.jobRules" -}}
- apiGroups: [evals.nhx.io]
  resources: [agentevaljobs]
  verbs: [list, watch, delete]
- apiGroups: [evals.nhx.io]
  resources: [filesets]
  verbs: [get, list, watch]
- apiGroups: [evals.nhx.io]
  resources: [agentevaljobs/status, filesets/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
# Whether it is being deleted, when a job's pods are told to end.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# Its own, and to read what the kubelet and the scheduler say about a job's pods.
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch, create]
{{- end -}}

{{- define "nhx.runtimeClassRules" -}}
- apiGroups: [node.k8s.io]
  resources: [runtimeclasses]
  verbs: [get]
# The kernel of the node that a measurement ran on, and the names of those that it did not run on.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list]
{{- end -}}

{{- /* Whether it is measured that a sandbox holds: where jobs are sandboxed at all. Empty if not. */ -}}
{{- define "nhx.measures" -}}
{{- if and .Values.canary.enabled (ne .Values.sandbox.mode "Disabled") }}true{{ end -}}
{{- end -}}

{{- define "nhx.canaryName" -}}
{{ include "nhx.fullname" . }}-canary
{{- end -}}

{{- /* What a measurement takes, in the operator's own namespace: see controller/measuring. */ -}}
{{- define "nhx.canaryRules" -}}
{{- $name := include "nhx.canaryName" . -}}
{{- $pods := list (printf "%s-listener" $name) (printf "%s-client" $name) | toJson -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ $name }}]
  verbs: [get, patch]
# Should somebody delete it. No right to create can be bound to a name, and whoever may create pods could do more.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [pods]
  verbs: [create]
- apiGroups: [""]
  resources: [pods]
  resourceNames: {{ $pods }}
  verbs: [get, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: {{ $pods }}
  verbs: [patch]
# Its own, and to read why a canary does not start.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end -}}

{{- /* What leader election takes: the one Lease, in the operator's own namespace. A name cannot bound `create`. */ -}}
{{- define "nhx.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "nhx.fullname" . }}]
  verbs: [get, update]
{{- end -}}

{{- /* The operator's settings file; see controller/settings.py. */ -}}
{{- define "nhx.settings" -}}
{{- $images := dict "checkBundled" .Values.images.checkBundled -}}
{{- range $role := list "tasks" "gymHost" "gymTasks" -}}
{{- $_ := set $images $role (include "nhx.image" (dict "root" $ "role" $role)) -}}
{{- end -}}
{{- $selector := dict "namespace" .Release.Namespace "labels" (include "nhx.selectorLabels" . | fromYaml) -}}
{{- $settings := dict
    "images" $images
    "imagePullPolicy" .Values.image.pullPolicy
    "sandbox" .Values.sandbox
    "watchNamespaces" .Values.watchNamespaces
    "pods" .Values.pods
    "resources" (omit .Values.resources "operator")
    "evaluatorEgress" .Values.evaluatorEgress
    "limits" .Values.limits
    "certificates" .Values.certificates
    "timeouts" .Values.timeouts
    "operatorPodSelector" $selector
-}}
{{- if include "nhx.measures" . -}}
{{- $canary := dict "name" (include "nhx.canaryName" .) "namespace" .Release.Namespace "intervalSeconds" .Values.canary.intervalSeconds -}}
{{- $_ := set $settings "canary" $canary -}}
{{- end -}}
{{- if .Values.leaderElection.enabled -}}
{{- $_ := set $settings "lease" (dict "name" (include "nhx.fullname" .) "namespace" .Release.Namespace) -}}
{{- else if gt (int .Values.replicas) 1 -}}
{{- fail "replicas above 1 need leaderElection.enabled: two operators would act on the same jobs" -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $settings "metricsPort" .Values.metrics.port -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- /* Two looks at the cluster that a user without cluster rights may not take. Helm ends with the name of the template that
took it, and nothing can be said instead: so the names say what to set. */ -}}
{{- define "a look at ClusterRoles; without the right to, name watchNamespaces and set rbac.runtimeClasses=false" -}}
{{- $_ := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" . -}}
{{- end -}}

{{- /* Fails where a definition exists that is not this release's, with the values to set. Takes `root` and `name`. */ -}}
{{- define "a look at CustomResourceDefinitions; without the right to, set crds.install=false" -}}
{{- with (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name) -}}
{{- $owner := .metadata.annotations | default dict -}}
{{- $release := get $owner "meta.helm.sh/release-name" -}}
{{- $namespace := get $owner "meta.helm.sh/release-namespace" -}}
{{- if or (ne $release $.root.Release.Name) (ne $namespace $.root.Release.Namespace) -}}
{{- $whose := ternary (printf "belongs to release %s in namespace %s" $release $namespace) "was not made by Helm" (ne $release "") -}}
{{- printf "CustomResourceDefinition %s exists and %s. Set crds.install=false to use it as it is, or crds.takeOver=true and Helm's --take-ownership to make it this release's." .metadata.name $whose | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}
