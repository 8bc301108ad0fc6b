{{- define "billing-shards.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "billing-shards.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "billing-shards.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "billing-shards.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "billing-shards.labels" -}}
{{ include "billing-shards.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "billing-shards.image" -}}
{{- $image := .image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .appVersion }}{{ end }}
{{- end }}

{{- /* The namespaces to watch, as a JSON list; empty: all of them. */}}
{{- define "billing-shards.namespaces" -}}
{{- if .Values.clusterWide }}
{{- if .Values.watchNamespaces }}{{ fail "watchNamespaces and clusterWide exclude each other: set one of them" }}{{ end -}}
[]
{{- else -}}
{{ .Values.watchNamespaces | default (list .Release.Namespace) | uniq | toJson }}
{{- end }}
{{- end }}

{{- /* What the operator may do, and why. */}}
{{- define "billing-shards.rules" -}}
# The resources, their status, and the finalizer (part of the resource itself).
- apiGroups: [billingshards.io]
  resources: [billingshardsets]
  verbs: [get, list, watch, patch]
- apiGroups: [billingshards.io]
  resources: [billingshardsets/status]
  verbs: [patch]
# Only the Secrets that a resource names, one by one: no list and no watch, and never a change.
- apiGroups: ['']
  resources: [secrets]
  verbs: [get]
# What it makes. Server-side apply is a patch, and needs create for what is not there yet.
- apiGroups: ['']
  resources: [configmaps, services]
  verbs: [list, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, create, patch, delete]
# Why a pod does not start, and whether all have ended.
- apiGroups: ['']
  resources: [pods]
  verbs: [list]
- apiGroups: ['']
  resources: [events]
  verbs: [create]
{{- end }}
